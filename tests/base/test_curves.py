import itertools
import xml.etree.ElementTree as ElementTree

import pytest

from t5xpg.base.curves import Curve, draw, spread, ticks

SVG = "{http://www.w3.org/2000/svg}"


def test_it_says_what_it_shows() -> None:
    training = Curve("training", "thin", list(range(1, 101)), [2.5] * 50 + [None] + [2.25] * 49)
    validation = Curve("validation", "own", [0, 50, 100], [6.0, 3.0, 8 / 3])
    root = ElementTree.fromstring(draw("tiny on <pydocs> & more", "step", "loss", [training, validation]))
    texts = ["".join(element.itertext()) for element in root.iter(f"{SVG}text")]
    assert {"tiny on <pydocs> & more", "loss", "step", "0", "20", "100"} <= set(texts)
    assert texts[-2:] == ["2.250training", "2.667validation"]
    thin = [element for element in root.iter(f"{SVG}path") if element.get("class") == "line thin"]
    assert len(thin) == 3  # before the gap, which is not bridged, after it, and the one of the label


def test_few_points_and_values_that_differ_by_little_are_drawn() -> None:
    for curve in (Curve("v", "own", [0], [2.0]), Curve("v", "thin", [0], [2.0]), Curve("v", "own", [1, 2], [0.0, 0.0])):
        ElementTree.fromstring(draw("t", "x", "y", [curve]))
    with pytest.raises(ValueError, match="no curve has a value"):
        draw("t", "x", "y", [Curve("v", "own", [1], [None])])
    for values in ((20.0, 20.000000000000004), (100 / 3, 33.33333333333334), (1e-13, 3e-13), (33.333332, 33.333336)):
        assert len(ticks(*values)) >= 4
        assert "<svg" in draw("t", "x", "y", [Curve("v", "own", [1, 2], values)])
    # with the digits of their distance
    assert ">6,759,150.3<" in draw("t", "x", "y", [Curve("v", "own", [1, 2], (6759150.05, 6759150.55))])


def test_ticks_cover_their_range_and_steps_are_whole() -> None:
    for exponent, factor in itertools.product(range(-6, 7), (1.0, 1.3, 2.7, 4.9, 8.8)):
        high = factor * 10.0**exponent
        found = ticks(0.1 * high, high)
        assert found[0] <= 0.1 * high * (1 + 1e-9)
        assert found[-1] >= high * (1 - 1e-9)
        assert 4 <= len(found) <= 9
        if high >= 1:
            assert all(tick == int(tick) for tick in ticks(0, high, whole=True))


def test_labels_are_moved_apart_as_little_as_possible() -> None:
    assert spread([100, 200, 300], 20, 0, 400) == [100, 200, 300]
    assert spread([200, 200], 20, 0, 400) == [190, 210]
    assert spread([210, 200, 205], 20, 0, 400) == [225, 185, 205]
    assert spread([399, 400], 20, 0, 400) == [380, 400]
    # a group that meets a neighbour takes it in
    assert spread([100, 100, 115], 20, 0, 400) == [85, 105, 125]
