from opatlas import pointwise, replays


def in_place(x):
    return x.add_(1)


@pointwise
def shift(x):
    return x + 1


@replays("Shift", npu=None)
def test_shift(row, replay):
    (x,) = row.inputs()
    replay(in_place, x, expected=shift)
