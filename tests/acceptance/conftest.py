"""The inputs of sessions have replays and tests of their own."""

collect_ignore_glob = ["*/input/*", "inputs/*"]
