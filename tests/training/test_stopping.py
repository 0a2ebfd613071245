"""Ctrl-C waits for the end of a step, where waiting is safe."""

import signal
import threading

import pytest

from semmix.training.stopping import ctrl_c_between_steps


def press_ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


def test_the_step_is_finished_first():
    done = []
    with pytest.raises(KeyboardInterrupt), ctrl_c_between_steps() as stop_wanted:
        assert not stop_wanted()
        press_ctrl_c()
        done.append("the rest of the step")
        assert stop_wanted()
    assert done
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_one_stops_at_once():
    with pytest.raises(KeyboardInterrupt), ctrl_c_between_steps():
        press_ctrl_c()
        press_ctrl_c()
        pytest.fail("still running")


def test_other_errors_pass_through():
    with pytest.raises(ZeroDivisionError), ctrl_c_between_steps():
        raise ZeroDivisionError
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_several_processes_stop_at_once():
    with pytest.raises(KeyboardInterrupt), ctrl_c_between_steps(world_size=2):
        press_ctrl_c()
        pytest.fail("still running")


def test_someone_elses_handler_stays():
    heard = []
    before = signal.signal(signal.SIGINT, lambda *_: heard.append("Ctrl-C"))
    try:
        with ctrl_c_between_steps() as stop_wanted:
            press_ctrl_c()
            assert not stop_wanted()
    finally:
        signal.signal(signal.SIGINT, before)
    assert heard == ["Ctrl-C"]


def test_other_threads_train_without_it():
    answers = []

    def work() -> None:
        with ctrl_c_between_steps() as stop_wanted:
            answers.append(stop_wanted())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert answers == [False]
