"""Run-time values of attention: records that a serving process dumped, into the Runtime columns."""
