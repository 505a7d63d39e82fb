"""Options of earlier versions, and what says the same now."""

_DRAFTER = {
  "--nodes": "--drafter NAME-NODES",
  "--tree": "--drafter NAME/TREE, for a file NAME/tree[FILE.json]",
  "--head": "--drafters 'NAME[PATH]'",
  "--draft-model": "--drafter 'draft_model[PATH]'",
  "--acceptance": "--drafter 'draft_model[PATH]/specdecpp[PATH]'",
  "--judge": "--verifier 'judge[PATH]'",
}
_POLICY = {
  flag: f"--policy NAME/{name}"
  for flag, name in {
    "--block": "fixed-SLOTS", "--cache": "CACHE", "--plan": "CACHE", "--stopping": "STOPPING",
    "--length": "STOPPING", "--guesses": "guesses-N", "--credit": "credit",
    "--guidance": "guidance-WEIGHT",
  }.items()
}  # fmt: skip
# By command.
MOVED: dict[str, dict[str, str]] = {
  "generate": _DRAFTER | {"--policy": "--drafter 'draft_model[PATH]/POLICY'"}
  | dict.fromkeys(("--repetition-penalty", "--presence-penalty", "--frequency-penalty"),
                  "--processors penalties-REPETITION-PRESENCE-FREQUENCY"),
  "denoise": _POLICY | {"--filter": "--policy 'learned[PATH]'"},
  "bench": {k.replace("--drafter", "--drafters"): v.replace("--drafter", "--drafters")
            for k, v in _DRAFTER.items()}
  | {"--filter": "--methods 'learned[PATH]'", "--student": "--methods 'NAME/student[PATH]'"},
  "tune": {"--head": "--drafters 'NAME[PATH]'", "--drafter": "--drafters"},
}  # fmt: skip
