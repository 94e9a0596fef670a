"""The action `cgroup` of documents: one control group file of each subject, with names and units of v2."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.compile import CgroupProgram
from koordpolicy.engine.framework.qos import Adjustment

from ..resource_executor.levels import is_same
from ..resource_executor.table import FILES, FileAccess, logical_name
from .action_kinds import ActionContext, Adjustments, Recovery, restore_originals

if TYPE_CHECKING:
    from .subjects import RoundBindings

SETTABLE: Final = frozenset(
    name for row in FILES.values() if row.access is FileAccess.WRITE
    for name in (row.name, row.v2.name if row.v2 is not None else row.name)
)
"""The names of files that documents may set: logical ones, and those of control groups v2."""


def set_file(program: CgroupProgram, context: ActionContext) -> Adjustments:
    """Write the value to the file of the subject's directory, unless it has it, or there is no such file.

    Raises:
        EvaluationError: the value is not one of the file's.
    """
    directory, readings = context.subject.directory, context.readings
    if not directory:
        return ()
    bindings = cast("RoundBindings", context.subject.bindings)
    files, host = readings.files, readings.host
    try:
        value, texts = bindings.evaluate(program.value, lambda value: (value, logical_values(program.file, str(value))))
    except ValueError as error:
        raise EvaluationError(f"`{program.file}` of {context.subject.name}: {error}", reason="InvalidValue") from None
    writes = tuple(
        (file, text) for name, text in texts
        if (old := files.get(file := f"{directory}/{name}")) is not None and old != text
        and not is_same(file, old, text, page_size=host.page_size, version=host.cgroup_version)
    )
    if not writes:
        return ()
    reason = f"{program.file} is {value}"
    values = {"file": program.file, "value": value, **context.values_read(program.value)}
    return (Adjustment("cgroup", context.subject.name, reason, context.item, values, writes),)


def recover_file(program: CgroupProgram, recovery: Recovery) -> Adjustments:  # noqa: ARG001 - one signature for all
    """Write the text that the file had before the first change."""
    return restore_originals("cgroup", recovery)


def logical_values(file: str, text: str) -> tuple[tuple[str, str], ...]:
    """Return logical files with their texts for a file named as in control groups v2, with a text of v2.

    A file with a logical name (`cpu.shares`) has its text as it is. A `cpu.max` with two numbers sets the period too.

    Raises:
        ValueError: the text is not one of the file's.
        KeyError: there is no such file.
    """
    logical = logical_name(file)
    row = FILES[logical]
    if logical == file:
        row.check(text)
        return ((logical, text),)
    version = row.v2
    assert version is not None
    found = [(logical, version.of(text) if version.of is not None else text)]
    if file == "cpu.max" and len(text.split()) > 1:
        found.insert(0, ("cpu.cfs_period_us", text.split()[1]))
    for name, each in found:
        FILES[name].check(each)
    return tuple(found)
