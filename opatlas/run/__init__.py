"""Replays one row on a device: makes the inputs, runs and times the kernel, and checks the result.

registry.py         `@replays`, and the import of the function of a job
job.py              one row to replay, and its outcome
runner.py           runs the body of a replay function on a device
replay.py           `replay`: runs, times and checks a kernel
inputs/             the arguments of a call, made from a row
sampling.py         takes the samples of a row
result_check.py     compares results with a formula
formula.py          the kinds of formulas
function_lookup.py  implementations and formulas by name
call_watch.py       which inputs and operators a call changes and calls
stand_in.py         describes operators that are timed in place of a kernel
process_state.py    changes of the process that a row leaves behind
outcome.py          the outcome that an exception means
group_spec.py       which group of processes a row needs
group.py            a group as one rank sees it
kernel_template.py  a file to begin a kernel of one's own with
kernel_facts.py     facts about each kernel type: replay, proof, operators
"""
