from koordpolicy.engine.descheduler.limits import CycleLimits, EvictionLimiter


def test_limits_count_nodes_namespaces_and_all():
    limiter = EvictionLimiter(CycleLimits(per_node=2, per_namespace=3, total=4))
    answers = []
    for on, namespace in (("a", "x"), ("a", "x"), ("a", "x"), ("b", "x"), ("c", "x"), ("", "y"), ("", "z")):
        answers.append(limiter.refusal(on, namespace))
        if not answers[-1]:
            limiter.done(on, namespace)
    assert answers == [
        "", "", "at most 2 pods of one node per cycle", "", "at most 3 pods of one namespace per cycle", "",
        "at most 4 pods per cycle",
    ]
    assert EvictionLimiter(CycleLimits(total=0)).refusal("a", "x") == "at most 0 pods per cycle"
