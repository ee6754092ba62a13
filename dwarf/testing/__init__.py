"""What tests of workflows are written with. `dwarf.testing.reference` runs a graph in memory."""
