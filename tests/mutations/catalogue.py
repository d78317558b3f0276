"""All mutations: what is broken, what that would cost people, and which test notices."""

import on_audits
import on_devices
import on_figures
import on_integers
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
    *on_devices.MUTATIONS,
    *on_figures.MUTATIONS,
    *on_integers.MUTATIONS,
    *on_audits.MUTATIONS,
    *on_ledgers.MUTATIONS,
)
