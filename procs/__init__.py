"""The processes of a replica, installed as `dwarf.procs`: each is one loop with a `main(argv)` that returns an exit code.

Modules here import `dwarf`, and their siblings relatively; nothing in `dwarf` imports them.
"""
