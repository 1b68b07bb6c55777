"""Suites of calls of torch: samples of OpInfo and traces of models."""
