from __future__ import annotations

from koordpolicy.engine.descheduler.anomaly import AnomalyCondition, Detector, Detectors, State

MINUTE = 60_000_000_000


def test_one_observation_more_than_asked_for_makes_an_anomaly_that_lapses():
    detector = Detector(AnomalyCondition(2, 1, MINUTE))
    assert [detector.mark_abnormal(0) for _ in range(3)] == [State.OK, State.OK, State.ANOMALY]
    assert (detector.state(MINUTE), detector.state(MINUTE + 1)) == (State.ANOMALY, State.OK)


def test_enough_normal_observations_end_an_anomaly_and_a_reset_does_at_once():
    for end in (lambda each: [each.mark_normal(0) for _ in range(2)], lambda each: each.reset(0)):
        detector = Detector(AnomalyCondition(1, 1))
        detector.mark_abnormal(0)
        assert detector.mark_abnormal(0) is State.ANOMALY
        end(detector)
        assert detector.state(0) is State.OK


def test_a_reset_in_order_keeps_the_counts_and_a_normal_observation_does_not():
    kept, cleared = (Detector(AnomalyCondition(1, 1)) for _ in range(2))
    for each in (kept, cleared):
        each.mark_abnormal(0)
    kept.reset(0)
    cleared.mark_normal(0)
    assert (kept.mark_abnormal(0), cleared.mark_abnormal(0)) == (State.ANOMALY, State.OK)


def test_detectors_that_nobody_stores_again_are_forgotten():
    detectors, condition = Detectors(MINUTE), AnomalyCondition(2, 1)
    assert [detectors.observe_abnormal("n", condition, time) for time in (0, 1, 2)] == [False, False, True]
    assert not detectors.observe_abnormal("n", condition, 2 * MINUTE)


def test_without_detection_every_observation_counts_and_leaves_nothing_behind():
    detectors = Detectors(MINUTE)
    assert detectors.observe_abnormal("n", None, 0)
    assert detectors.observe_abnormal("n", AnomalyCondition(1, 1), 0)
    assert detectors.find("n", 0) is None
