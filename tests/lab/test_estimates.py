"""Tests of the remaining time that `lazy uptrain` estimates."""

import pytest
from lazy_lab.estimates import Forecast, shown
from lazy_lab.steps import Step


def step(name, kind="", work=0.0, fixed_seconds=1.0):
    return Step(name, name, "eval", {}, [], kind=kind, work=work, fixed_seconds=fixed_seconds)


def test_speed_is_measured_with_finished_steps():
    steps = [step("convert", fixed_seconds=9), step("a", "loss", 100, 2), step("b", "train", 1000, 5)]
    forecast = Forecast(steps, {"convert": {"seconds": 12}, "a": {"seconds": 7}})
    assert forecast.rate == pytest.approx(0.05)  # seconds per token: 5 s for 100 tokens
    assert forecast.left == {"b": pytest.approx(55)} and forecast.seconds_left() == pytest.approx(55)
    assert len(forecast.table().splitlines()) == 3


def test_steps_of_one_kind_take_times_in_proportion_to_their_work():
    steps = [step("a", "loss", 100, 2), step("b", "loss", 200, 2), step("c", "loss", 100, 2)]
    assert Forecast(steps, {"a": {"seconds": 7}}).left == pytest.approx({"b": 14, "c": 7})


def test_time_is_unknown_until_a_step_with_work_is_finished():
    steps = [step("convert"), step("a", "loss", 100)]
    assert Forecast(steps, {"convert": {"seconds": 3}}).seconds_left() is None
    assert Forecast(steps, {"convert": {"seconds": 3}}, rate=0.5).seconds_left() == pytest.approx(51)


@pytest.mark.parametrize(("seconds", "text"), [(5.4, "5 s"), (150, "2 minutes"), (9000, "2.5 hours")])
def test_times_are_printed_with_a_suitable_unit(seconds, text):
    assert shown(seconds) == text
