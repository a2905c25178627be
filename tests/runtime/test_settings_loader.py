"""Settings from file, environment and flags: who wins, and what is refused. Shown with the real settings classes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.controller.settings import ControllerSettings
from penstock.model.errors import InvalidArgumentError
from penstock.runtime.errors import SettingsError
from penstock.runtime.settings import load_settings, setting_paths, settings_from, settings_values
from penstock.server.settings import MAY_BE_ZERO, StandaloneSettings, may_be_zero

#: Settings of a server.
SETTINGS_MAX = 239


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return the path of a settings file to be written."""
    return tmp_path / "settings.toml"


def test_defaults_apply_without_values() -> None:
    """And equal the dataclass's own."""
    assert load_settings(StandaloneSettings) == StandaloneSettings()


def test_flags_beat_the_environment_which_beats_the_file(file: Path) -> None:
    """Three settings, each said by one source more."""
    file.write_text('host = "f"\nadvertise = "f"\ndata_dir = "f"\n')
    environment = {"PENSTOCK_ADVERTISE": "e", "PENSTOCK_DATA_DIR": "e", "HOME": "/", "PENSTOCK_CONFIG": "ignored",
                   "PENSTOCK_URI": "ignored"}  # fmt: skip
    flags = {"data_dir": "g", "log_level": None}
    loaded = load_settings(StandaloneSettings, file=file, environment=environment, flags=flags)
    assert (loaded.host, loaded.advertise, loaded.data_dir, loaded.log_level) == ("f", "e", "g", "info")


def test_nested_settings_are_tables_double_underscores_and_dots(file: Path) -> None:
    """All three reach the same table, and leave its other settings alone."""
    file.write_text(
        "[segment_store.cache]\nbytes_max = 100000000\ntarget_percent = 50\n[controller]\nlease_ms_min = 3\n"
    )
    loaded = load_settings(
        StandaloneSettings,
        file=file,
        environment={"PENSTOCK_SEGMENT_STORE__CACHE__TARGET_PERCENT": "60", "PENSTOCK_IS_MEMORY": "true"},
        flags={"segment_store.container_count": 2},
    )
    assert (loaded.segment_store.cache.bytes_max, loaded.segment_store.cache.target_percent) == (100_000_000, 60)
    assert (loaded.segment_store.container_count, loaded.controller.lease_ms_min) == (2, 3)
    assert loaded.is_memory is True


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("hots = 'x'", "hots.*did you mean host"),
        ("[segment_store.cach]\nbytes_max = 1", "did you mean cache"),
        ("[segment_store.cache]\nbytes = 1", "segment_store.cache.bytes.*did you mean bytes_max"),
        ("zzz = 1", "there are: data_dir"),
        ("segment_store = 3", "segment_store is a table"),
        ("controller_port = 'many'", "controller_port"),
        ("controller_port = 9.5", "controller_port"),
        ("= 3", "not TOML"),
    ],
)
def test_wrong_keys_and_values_in_a_file_are_refused(file: Path, text: str, told: str) -> None:
    """With the key's path and the nearest setting."""
    file.write_text(text)
    with pytest.raises(SettingsError, match=f"(?s){told}"):
        load_settings(StandaloneSettings, file=file)


@pytest.mark.parametrize(
    ("variable", "told"),
    [
        ("PENSTOCK_HOTS", "PENSTOCK_HOTS.*did you mean host"),
        ("PENSTOCK_SEGMENT_STORE__CACHE", "is a table"),
        ("PENSTOCK_HOST__NAME", "has no nested settings"),
        ("PENSTOCK_CONTROLLER_PORT", "controller_port"),
        ("PENSTOCK_", "no setting"),
    ],
)
def test_wrong_variables_are_refused(variable: str, told: str) -> None:
    """A misspelt variable would otherwise pass silently."""
    with pytest.raises(SettingsError, match=told):
        load_settings(StandaloneSettings, environment={variable: "not a number"})


@pytest.mark.parametrize(
    "source",
    [
        {"environment": {"PENSTOCK_SEGMENT_STORE__CONTAINER__CHECKPOINT_FRAMES": "10"}},
        {"flags": {"segment_store.container.checkpoint_frames": 10}},
    ],
)
def test_a_constant_cannot_be_set(file: Path, source: dict[str, dict[str, object]]) -> None:
    """The error names the constant and its value, for files written when it was a setting."""
    message = r"segment_store\.container\.checkpoint_frames is a constant with the value 300, not a setting"
    with pytest.raises(SettingsError, match=message):
        load_settings(StandaloneSettings, **source)  # type: ignore[arg-type]
    file.write_text("[segment_store.container]\ncheckpoint_frames = 10")
    with pytest.raises(SettingsError, match=message):
        load_settings(StandaloneSettings, file=file)


def test_constants_are_not_listed_and_reach_another_process() -> None:
    """A process with small constants, as in tests, passes them to its children."""
    assert "segment_store.container.checkpoint_frames" not in setting_paths(StandaloneSettings)
    settings = StandaloneSettings(controller=ControllerSettings(page_entries_max=3))
    values = json.loads(json.dumps(settings_values(settings)))
    assert settings_from(StandaloneSettings, values, "the parent").controller.page_entries_max == 3


def test_a_constant_is_never_suggested_for_an_unknown_name(file: Path) -> None:
    file.write_text("[segment_store.container]\ncheckpoint_frame = 10")
    with pytest.raises(SettingsError) as refused:
        load_settings(StandaloneSettings, file=file)
    assert "checkpoint_frames" not in str(refused.value)


def test_a_missing_file_is_refused(file: Path) -> None:
    """It was named, so it was meant."""
    with pytest.raises(SettingsError, match="cannot be read: No such file"):
        load_settings(StandaloneSettings, file=file)


def test_values_are_checked_by_the_settings_themselves() -> None:
    """What no type says."""
    with pytest.raises(InvalidArgumentError, match="between 0"):
        load_settings(StandaloneSettings, flags={"controller_port": -1})


def value_at(settings: object, path: str) -> object:
    for name in path.split("."):
        settings = getattr(settings, name)
    return settings


def paths_of(values: dict[str, object]) -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from (f"{name}.{path}" for path in paths_of(value))
        else:
            yield name


NUMBERS = [
    path for path in setting_paths(StandaloneSettings) if type(value_at(StandaloneSettings(), path)) in (int, float)
]


@pytest.mark.parametrize("path", NUMBERS)
def test_no_number_is_negative_or_without_end(path: str) -> None:
    """The error names the setting; 0 is valid only where it has a meaning."""
    name = path.rpartition(".")[2]
    default = value_at(StandaloneSettings(), path)
    bad = [-1] if isinstance(default, int) else [-0.5, float("nan"), float("inf")]
    if default != 0 and not may_be_zero(path):
        bad.append(0)
    for value in bad:
        with pytest.raises(InvalidArgumentError, match=name):
            load_settings(StandaloneSettings, flags={path: value}).checked()


def test_defaults_are_those_that_pravega_has() -> None:
    """Where a setting means the same: operators and clients expect no other ports, times and numbers."""
    settings = StandaloneSettings()
    controller = settings.controller
    assert (settings.controller_port, settings.segment_store.container_count) == (9090, 4)
    assert (controller.lease_ms_min, controller.lease_ms_max) == (10_000, 600_000)
    assert controller.transaction_lifetime_ms_max == controller.completed_transaction_ttl_ms == 24 * 3_600_000
    assert controller.transaction_lifetime_leases_max == 1000
    assert controller.completed_transactions_listed_max == 500
    assert controller.commit_batch_max == 100
    assert controller.workflow_timeout_s == 120
    assert (controller.retry_delay_ms_first, controller.attempts_max, controller.retry_delay_ms_max) == (
        100, 10, 10_000,
    )  # fmt: skip
    assert (controller.retention_bucket_count, controller.watermarking_bucket_count) == (1, 100)
    assert controller.watermarks.interval_s == 10
    advice = settings.segment_store.container.activity.scale_advice
    assert (advice.cool_down_s, controller.auto_scaling.mute_s) == (600, 600)


def test_operators_have_no_more_settings() -> None:
    """A value that no operator has a reason to change is a constant, see `fixed`. The number may not grow."""
    assert len(list(setting_paths(StandaloneSettings))) <= SETTINGS_MAX


def test_defaults_pass_every_check() -> None:
    """Each name that may be 0 is that of a setting or a constant."""
    assert StandaloneSettings().checked() == StandaloneSettings()
    paths = set(paths_of(settings_values(StandaloneSettings())))
    assert all(any(f".{path}".endswith(f".{name}") for path in paths) for name in MAY_BE_ZERO)


@pytest.mark.parametrize("path", ["joins.interval_s", "images.interval_s"])
def test_work_in_the_background_can_be_switched_off(path: str) -> None:
    """As the documents say. Of the garbage it cannot."""
    flags: dict[str, object] = {f"segment_store.container.{path}": 0}
    assert value_at(load_settings(StandaloneSettings, flags=flags).checked(), f"segment_store.container.{path}") == 0
    with pytest.raises(InvalidArgumentError, match="interval_s"):
        load_settings(StandaloneSettings, flags={"segment_store.container.garbage.interval_s": 0}).checked()
    with pytest.raises(InvalidArgumentError, match="interval_s"):
        load_settings(StandaloneSettings, flags={f"segment_store.container.{path}": -1}).checked()


@pytest.mark.parametrize(("port", "stores"), [(65536, 1), (70000, 1), (65534, 3), (-1, 1)])
def test_an_invalid_administration_port_is_refused(port: int, stores: int) -> None:
    """Some event loops take 70000 for 4464. One that is off is not inspected."""
    flags = {"segment_store.admin.port": port, "segment_store.admin.is_enabled": True, "segment_stores": stores}
    with pytest.raises(InvalidArgumentError, match=r"segment_store\.admin\.port"):
        load_settings(StandaloneSettings, flags=flags)
    load_settings(StandaloneSettings, flags={**flags, "segment_store.admin.is_enabled": False})
    load_settings(StandaloneSettings, flags={**flags, "segment_store.admin.port": 65536 - stores})


def test_every_setting_has_a_path() -> None:
    """Paths of nested settings are dotted."""
    paths = list(setting_paths(StandaloneSettings))
    assert "host" in paths
    assert "segment_store.container.flush_bytes" in paths
    assert len(paths) == len(set(paths))


def test_settings_go_through_json_to_another_process() -> None:
    """All of them; what names no setting, or is of another type, is refused."""
    settings = load_settings(StandaloneSettings, flags={"segment_store.cache.bytes_max": 100_000_000, "host": "h"})
    values = json.loads(json.dumps(settings_values(settings)))
    assert settings_from(StandaloneSettings, values, "the parent") == settings
    with pytest.raises(SettingsError, match=r"the parent: segment_store\.cash: .*did you mean cache\?"):
        settings_from(StandaloneSettings, {"segment_store": {"cash": {}}}, "the parent")
    with pytest.raises(SettingsError, match="the parent: a setting has the wrong type"):
        settings_from(StandaloneSettings, {"controller_port": "9090"}, "the parent")


KUBERNETES = {
    "PENSTOCK_SERVICE_HOST": "10.0.0.7",
    "PENSTOCK_SERVICE_PORT": "9090",
    "PENSTOCK_SERVICE_PORT_GRPC": "9090",
    "PENSTOCK_PORT": "tcp://10.0.0.7:9090",
    "PENSTOCK_PORT_9090_TCP": "tcp://10.0.0.7:9090",
    "PENSTOCK_PORT_9090_TCP_PROTO": "tcp",
    "PENSTOCK_PORT_9090_TCP_PORT": "9090",
    "PENSTOCK_PORT_9090_TCP_ADDR": "10.0.0.7",
    # A Service called penstock-controller: its last variable has the name of a setting.
    "PENSTOCK_CONTROLLER_SERVICE_HOST": "10.0.0.8",
    "PENSTOCK_CONTROLLER_PORT": "tcp://10.0.0.8:9090",
    "PENSTOCK_CONTROLLER_PORT_9090_TCP_ADDR": "10.0.0.8",
}


def test_variables_that_kubernetes_sets_for_a_service_are_ignored_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert load_settings(StandaloneSettings, environment=KUBERNETES) == StandaloneSettings()
    (record,) = caplog.records
    assert all(name in record.getMessage() for name in KUBERNETES)


def test_settings_with_names_like_those_of_kubernetes_still_count(caplog: pytest.LogCaptureFixture) -> None:
    loaded = load_settings(StandaloneSettings, environment={"PENSTOCK_CONTROLLER_PORT": "9191"})
    assert loaded.controller_port == 9191
    assert not caplog.records
    with pytest.raises(SettingsError, match="PENSTOCK_PORT"):
        load_settings(StandaloneSettings, environment={"PENSTOCK_PORT": "9191"})
