"""All mutations: what is broken, what that would cost people, and which test notices."""

import on_ledgers
import on_noise
import on_participation
import on_records
import on_reports

MUTATIONS = (
    *on_reports.MUTATIONS,
    *on_noise.MUTATIONS,
    *on_participation.MUTATIONS,
    *on_records.MUTATIONS,
    *on_ledgers.MUTATIONS,
)
