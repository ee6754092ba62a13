"""The demo: three applications on one engine, which is killed in the middle. `python -m examples.demo` runs it."""
