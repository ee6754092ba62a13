from tests.traces.notation import X
def test_x() -> None:
    assert X == 1
