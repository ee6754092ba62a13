"""Executing steps: one executor runs tasks of one App, many at a time, and decides what is to be stored."""
