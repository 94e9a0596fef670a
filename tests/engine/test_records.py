"""Tests of frozen dataclasses that are made fast."""

from __future__ import annotations

import copy
import inspect
import pickle
from dataclasses import FrozenInstanceError, asdict, dataclass, field, replace

import pytest

from koordpolicy.engine.records import fast_init, replaced


@dataclass(frozen=True, slots=True)
class Slow:
    name: str
    size: int = 3
    parts: list[int] = field(default_factory=list)


@fast_init
@dataclass(frozen=True, slots=True)
class Fast:
    name: str
    size: int = 3
    parts: list[int] = field(default_factory=list)


@fast_init
@dataclass(frozen=True, slots=True)
class Doubled:
    number: int
    doubled: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "doubled", 2 * self.number)


class Base:
    __slots__ = ("note",)


@fast_init
@dataclass(frozen=True, slots=True, eq=False)
class Derived(Base):
    number: int


class Special(Derived):
    __slots__ = ()


def test_an_object_is_made_as_without_it() -> None:
    for arguments, named in ((("a",), {}), (("a", 4), {}), (("a",), {"parts": [1]}), ((), {"name": "b", "size": 9})):
        assert asdict(Fast(*arguments, **named)) == asdict(Slow(*arguments, **named))  # type: ignore[arg-type]


def test_each_object_has_its_own_default() -> None:
    first, second = Fast("a"), Fast("a")
    first.parts.append(1)
    assert second.parts == []


def test_it_is_frozen_and_of_its_own_class() -> None:
    made = Fast("a")
    assert type(made) is Fast
    with pytest.raises(FrozenInstanceError):
        made.name = "b"  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        replaced(made, size=1).size = 2  # type: ignore[misc]


def test_the_signature_and_the_errors_are_those_of_the_dataclass() -> None:
    assert str(inspect.signature(Fast)) == str(inspect.signature(Slow))
    with pytest.raises(TypeError, match=r"missing 1 required positional argument: 'name'"):
        Fast()  # type: ignore[call-arg]


def test_objects_are_compared_hashed_copied_and_pickled_as_before() -> None:
    made = Fast("a", 1, [2])
    assert made == copy.copy(made) == copy.deepcopy(made) == pickle.loads(pickle.dumps(made))
    assert repr(made) == "Fast(name='a', size=1, parts=[2])"
    assert hash(Doubled(2)) == hash(Doubled(2))


def test_post_init_runs_on_the_frozen_object() -> None:
    assert Doubled(4) == replace(Doubled(1), number=4)
    assert Doubled(4).doubled == 8


def test_replaced_does_what_replace_does() -> None:
    made = Fast("a", 1, [2])
    assert replaced(made, size=7) == replace(made, size=7)
    assert made == Fast("a", 1, [2])
    with pytest.raises(AttributeError, match="colour"):
        replaced(made, colour=1)


def test_slots_of_a_base_are_not_copied() -> None:
    made = Derived(1)
    object.__setattr__(made, "note", "x")
    assert not hasattr(replaced(made, number=2), "note")


def test_a_subclass_keeps_its_class() -> None:
    assert type(Special(3)) is Special
    assert Special(3).number == 3


def test_classes_that_it_would_break_are_rejected() -> None:
    @dataclass(frozen=True)
    class Dict:
        number: int

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Named:
        number: int

    for cls in (Dict, Named):
        with pytest.raises(TypeError, match="must have"):
            fast_init(cls)
