"""The database's side of Dwarf: schema, migrations, functions and named statements, installed as `dwarf.sql`.

Only `.sql` files live here. `dwarf.queries` is the one module that reads them.
"""
