"""Guards against candidates that only seem right or fast. docs/candidates.md lists the findings of each.

`JudgedReplay` (judged_replay.py) judges a candidate on a row: the steps that all candidates have in common.
`CandidateTrial` (trial.py) calls a candidate with inputs that change between calls, and judges the results at the end.
`ProcessGuard` (process_guard.py) finds replaced parts of the process, and restores the settings of torch.
"""
