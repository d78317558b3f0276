"""What a device takes from its server, and how often it answers; and who is left out when a sum fails."""

from mutation import Edit, Mutation

DEVICE, RECORD, FLEET = "fleets/devices/device.py", "fleets/devices/participation_record.py", "fleets/devices/fleet.py"
LIES, SUMS, BLAME = (
    "tests/fleets/test_attacks_lying_server.py",
    "tests/fleets/test_attacks_secure_sum.py",
    "tests/fleets/test_blame.py",
)
OTHER_MODEL = f"{LIES}::test_a_device_trains_on_no_other_model_than_all_were_told_of[1e+30]"
NOT_HONEST = f"{LIES}::test_what_no_honest_server_sends_is_trained_on_by_nobody"
KILLED = "tests/fleets/test_devices.py::test_killed_between_a_sum_and_its_charge_the_round_goes_on_with_others_and_is_charged_once"
USED_UP = f"{LIES}::test_a_round_that_was_reported_to_is_used_up[False-another name]"

MUTATIONS = (
    Mutation(
        "a device that trains on whatever it is sent",
        "A model that makes all others report nothing, sent to all but one, turns the secure sum into that one's report.",
        (
            Edit(
                DEVICE,
                "if fields.message_hash(self._run, self._round, message_bytes, key_bytes) != self._message_hash:",
                "if False:",
            ),
        ),
        (OTHER_MODEL,),
    ),
    Mutation(
        "a hash of everything but the model",
        "Devices agree on a round, and not on what they train on: one of them can be singled out.",
        (
            Edit(
                "fleets/devices/fields.py",
                "pack_fields(run, round, model, key)).digest()",
                "pack_fields(run, round, key)).digest()",
            ),
        ),
        (OTHER_MODEL,),
    ),
    Mutation(
        "a hash without the run",
        "What devices agreed to in one run is taken for their word in another.",
        (
            Edit(
                "fleets/devices/fields.py",
                "pack_fields(run, round, model, key)).digest()",
                "pack_fields(round, model, key)).digest()",
            ),
        ),
        (f"{LIES}::test_the_hash_is_of_run_and_round_and_key_too[other0]",),
    ),
    Mutation(
        "terms without the message",
        "Signatures, shares and masks are the same whatever devices were told that they train on.",
        (
            Edit(
                "fleets/secure_aggregation/messages.py",
                'b"taciturn secure sum: terms\\0" + self.to_bytes()',
                'b"taciturn secure sum: terms\\0" + self._replace(message=bytes(HASH_BYTES)).to_bytes()',
            ),
        ),
        (f"{SUMS}::test_every_key_of_a_round_depends_on_the_message[False]",),
    ),
    Mutation(
        "a model of numbers that are none",
        "Whoever trains on it reports nothing, and who does not stands alone in the sum.",
        (Edit(DEVICE, "if not all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(message)):", "if False:"),),
        (f"{NOT_HONEST}[a parameter is NaN]",),
    ),
    Mutation(
        "any clip norm that the server likes",
        "A report is as long as the server wants it, and noise is made for the recipe's.",
        (Edit(DEVICE, "if not all(np.array_equal(*pair) for pair in zip(own, given, strict=True)):", "if False:"),),
        (f"{NOT_HONEST}[the clip norm is a bit more than the recipe's]",),
    ),
    Mutation(
        "a round that may be reported to again",
        "The sums of nine devices and of eight of them differ by one person's report.",
        (
            Edit(RECORD, 'if uploads and round <= uploads[-1]["round"]:', "if False:"),
            Edit(
                RECORD,
                'if uploads and round - uploads[-1]["round"] <= self._limits.min_separation:',
                'if uploads and 0 < round - uploads[-1]["round"] <= self._limits.min_separation:',
            ),
        ),
        (USED_UP,),
    ),
    Mutation(
        "a report that is not on record",
        "The device forgets that it reported, and does so again.",
        (
            Edit(
                DEVICE,
                "if why_not := self._record.upload(int(self._round), self._run.decode(), int(message.public.round)):",
                "if why_not := None:",
            ),
        ),
        (USED_UP,),
    ),
    Mutation(
        "a report that leaves although its record failed",
        "With a full disk a device reports as often as it is asked.",
        (
            Edit(
                RECORD,
                '                content["uploads"].append({"round": round, "run": run, "row": row, "at": _now()})\n'
                "                self._write(content)\n",
                '                content["uploads"].append({"round": round, "run": run, "row": row, "at": _now()})\n'
                "                try:\n"
                "                    self._write(content)\n"
                "                except OSError:\n"
                "                    pass\n",
            ),
        ),
        (f"{LIES}::test_no_report_leaves_before_it_is_on_record",),
    ),
    Mutation(
        "a device without a cap of its own",
        "Whoever calls a run by another name has a device's reports without end.",
        (Edit(RECORD, "if len(uploads) >= self._limits.max_participations:", "if False:"),),
        (f"{LIES}::test_separation_timer_and_cap_count_over_all_runs[another name]",),
    ),
    Mutation(
        "an attempt's name that may come again",
        "A device has two sets of keys under one name, and the server shows others whichever it likes.",
        (Edit(RECORD, 'if name.hex() <= content["name"]:', "if False:"),),
        (f"{LIES}::test_a_name_that_was_seen_before_is_refused",),
    ),
    Mutation(
        "old adverts that pass for neighbours",
        "Half of the masks of a report are with devices whose keys the server learned before.",
        (
            Edit(
                "fleets/secure_aggregation/device_side.py",
                "if len(held) < self._degree.threshold:",
                "if len(peers) < self._degree.threshold:",
            ),
        ),
        (f"{SUMS}::test_a_neighbour_that_is_not_there_now_is_none",),
    ),
    Mutation(
        "a seed that fits nothing, and nobody is blamed",
        "One device keeps all others from training, for as long as it likes.",
        (Edit("fleets/secure_aggregation/server_side.py", "self._spoilt.add(owner)", "pass"),),
        (f"{BLAME}::test_a_seed_that_is_not_what_was_committed_to_is_its_owners_fault[10]",),
    ),
    Mutation(
        "blamed on the word of one",
        "Any device can have any other left out.",
        (Edit("fleets/secure_aggregation/blame.py", "if count < enough:", "if count < 1:"),),
        (f"{BLAME}::test_fewer_than_may_work_together_frame_nobody",),
    ),
    Mutation(
        "who broke the protocol is asked again",
        "One device keeps all others from training, for as long as it likes.",
        (
            Edit(
                FLEET,
                "for connection, device in self._devices().items() if device not in left_out}",
                "for connection, device in self._devices().items()}",
            ),
        ),
        (f"{BLAME}::test_it_stays_left_out_after_a_crash_and_who_it_is_stands_in_private_notes_alone",),
    ),
    Mutation(
        "reports that are asked for again after a crash",
        "Devices that reported to a sum which was lost are asked once more, and no more than their own record keeps a second sum apart.",
        (Edit(FLEET, "if not numbers.resting(0).isdisjoint(cohort.tolist()):", "if False:"),),
        (f"{KILLED}[Records-write-20]",),
    ),
    Mutation(
        "a sum that is written down",
        "What a round was without its noise lies on the server's disk.",
        (
            Edit(
                FLEET,
                "        self._summed = cohort\n",
                '        self._summed = cohort\n        write_atomically(self._folder / "total", values.astype("<u4").tobytes(), 0o600)\n',
            ),
        ),
        ("tests/fleets/test_devices.py::test_no_total_without_noise_is_ever_on_disk[False]",),
    ),
    Mutation(
        "devices sent away before the charge",
        "Whatever goes wrong while they are told costs a whole cohort's reports.",
        (Edit(FLEET, "        self._summed = cohort\n", "        self._steer(cohort)\n"),),
        ("tests/fleets/test_devices.py::test_whoever_is_not_needed_is_told_when_to_come_back[30-12]",),
    ),
    Mutation(
        "a log that names who broke the protocol",
        "Who took part in a round is read in the server's log.",
        (
            Edit(
                FLEET,
                'LOG.warning("stage %s: discarded %d of %d malformed answers", kind, len(refused), len(answers))',
                'LOG.warning("“%s”: %s of %d answers", kind, [f"device {one}" for one in refused], len(answers))',
            ),
        ),
        ("tests/fleets/test_devices.py::test_who_took_part_is_said_in_no_log_outside_the_private_folder",),
    ),
)
