"""Defaults are the specification's, written out here by hand; configs are values."""

import dataclasses

import jax
import pytest

import jaxrl_trade as jt
from jaxrl_trade.config import ExecutionTable, PPOHypers, RewardScales
from tests.reference import presets

PLAN_REWARD = {
    "barrier_scale": 0.5,
    "diversity_scale": 1.0,
    "curiosity_scale": 1.0,
    "curiosity_max_reward": 0.1,
    "risk_weight": 0.1,
}
NET_REWARD = {**PLAN_REWARD, "barrier_scale": 0.0, "diversity_scale": 0.01, "curiosity_scale": 0.01}
PPO_HYPERS = {
    "learning_rate": 3e-4,
    "curiosity_learning_rate": 1e-3,
    "clip": 0.2,
    "entropy_coef": 0.01,
    "value_coef": 0.5,
    "max_grad_norm": 0.5,
    "gamma": 0.99,
    "gae_lambda": 0.95,
}


def rows(table: ExecutionTable) -> dict:
    return {field.name: list(getattr(table, field.name)) for field in dataclasses.fields(table)}


@pytest.mark.parametrize(("actual", "expected"), [(jt.EnvConfig(), presets.PLAN), (jt.EnvConfig.net(), presets.NET)])
def test_environment_defaults_are_the_specification_s(actual, expected):
    settings = {field.name: getattr(actual, field.name) for field in dataclasses.fields(actual)}
    settings["execution"] = rows(actual.execution)
    assert settings.pop("mask") is None
    assert settings == expected


@pytest.mark.parametrize(("actual", "expected"), [(jt.PPOConfig(), PLAN_REWARD), (jt.PPOConfig.net(), NET_REWARD)])
def test_reward_scales_and_hyperparameters_are_the_specification_s(actual, expected):
    hypers = dataclasses.asdict(actual.hypers)
    assert hypers.pop("reward") == expected
    assert hypers == PPO_HYPERS


def test_ppo_collects_64000_experiences_and_updates_4_times_4():
    config = jt.PPOConfig()
    assert (config.n_episodes, config.timesteps_per_episode, config.total_experiences) == (128, 500, 64_000)
    assert (config.epochs, config.minibatches, config.compute_dtype) == (4, 4, "float32")
    assert config.negative_slope == 0.01
    assert (config.actor_hidden, config.critic_hidden) == ((128, 64), (512, 384, 256, 128, 64))
    assert config.curiosity_hidden == (64,)
    assert config.schedule == "constant"
    assert config.target_kl is None
    assert config.value_clip is None
    assert config.env == jt.EnvConfig()
    assert jt.PPOConfig.net().env == jt.EnvConfig.net()
    assert config.n_actions == 45


@pytest.mark.parametrize(
    ("exposure", "order", "urgency", "plan", "net"),
    [  # fee, fill, offset, maker: section 3, read off row by row
        (-1.0, presets.MARKET, presets.PATIENT, (0.0015, 1.0, 0.0, False), (0.0005, 1.0, 0.5, False)),
        (-0.5, presets.LIMIT, presets.PATIENT, (0.0005, 1.0, 0.0, False), (0.0001, 1.0, -1.0, True)),
        (0.0, presets.LIMIT, presets.NORMAL, (0.0005, 1.0, 0.0, False), (0.0001, 1.0, -0.75, True)),
        (0.5, presets.LIMIT, presets.AGGRESSIVE, (0.0005, 1.0, 0.0, False), (0.0001, 1.0, -0.5, True)),
        (1.0, presets.IOC, presets.PATIENT, (0.0010, 1.0, 0.0, False), (0.0005, 0.5, 0.5, False)),
        (1.0, presets.IOC, presets.NORMAL, (0.0010, 1.0, 0.0, False), (0.0005, 0.75, 0.5, False)),
        (1.0, presets.IOC, presets.AGGRESSIVE, (0.0010, 1.0, 0.0, False), (0.0005, 1.0, 0.5, False)),
    ],
)
def test_an_action_index_reads_exposure_order_urgency(exposure, order, urgency, plan, net):
    index = {-1.0: 0, -0.5: 1, 0.0: 2, 0.5: 3, 1.0: 4}[exposure] * 9 + order * 3 + urgency
    for table, expected in ((jt.EnvConfig().execution, plan), (jt.EnvConfig.net().execution, net)):
        row = (table.fee_rate[index], table.fill_ratio[index], table.price_offset[index], table.is_maker[index])
        assert row == expected
        assert table.exposure[index] == exposure


def test_configs_of_equal_values_are_equal_hash_alike_and_any_sequence_makes_a_table():
    as_lists = ExecutionTable(**presets.NET_TABLE)
    as_tuples = ExecutionTable(**{name: tuple(column) for name, column in presets.NET_TABLE.items()})
    assert as_lists == as_tuples
    assert hash(as_lists) == hash(as_tuples)
    assert all(isinstance(x, float) for x in as_lists.exposure + as_lists.fill_ratio)
    first, second = (
        jt.PPOConfig(env=jt.EnvConfig(execution=as_lists)),
        jt.PPOConfig(env=jt.EnvConfig(execution=as_tuples)),
    )
    assert first == second
    assert hash(first) == hash(second)
    assert len({jt.EnvConfig(), jt.EnvConfig.net(), jt.EnvConfig(spread=2e-4), jt.EnvConfig()}) == 3


def test_configs_cannot_be_changed_in_place():
    with pytest.raises(dataclasses.FrozenInstanceError):
        jt.EnvConfig().spread = 0.0  # type: ignore[misc]


def test_hyperparameters_are_a_pytree_of_scalars():
    leaves = jax.tree.leaves(PPOHypers(reward=RewardScales(risk_weight=7.0)))
    assert len(leaves) == len(PLAN_REWARD) + len(PPO_HYPERS)
    assert 7.0 in leaves


def test_a_table_gives_one_device_array_per_column():
    arrays = ExecutionTable(**presets.ODD_TABLE).arrays()
    assert [column.shape for column in arrays] == [(11,)] * 5
    assert arrays.is_maker.dtype == bool
    assert arrays.fee_rate.dtype == jax.numpy.zeros(()).dtype


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"fill": "open"}, r"fill = 'open'.*'close', 'next_open'"),
        ({"sizing": "shares"}, r"sizing = 'shares'.*'units', 'leverage', 'equity'"),
        ({"reward_base": None}, r"reward_base = None"),
        ({"time_limit": "ignore"}, r"time_limit = 'ignore'"),
        ({"episode_length": 0}, r"episode_length = 0.*at least 1"),
        ({"diversity_window": -5}, r"diversity_window = -5.*at least 1"),
        ({"initial_capital": 0.0}, r"initial_capital = 0\.0.*above 0"),
        ({"initial_capital": float("nan")}, r"initial_capital = nan.*above 0"),
        ({"max_position": "1"}, r"max_position = '1'.*number"),
        ({"leverage": -1.0}, r"leverage = -1\.0.*above 0"),
        ({"spread": -1e-4}, r"spread = -0\.0001"),
        ({"reserve_fraction": 1.5}, r"reserve_fraction = 1\.5.*None"),
        ({"ruin_fraction": 1.0}, r"ruin_fraction = 1\.0"),
    ],
)
def test_a_setting_out_of_range_is_named_with_what_was_wanted(settings, message):
    with pytest.raises(ValueError, match=message):
        jt.EnvConfig(**settings)


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("exposure", [2.0] * 11, r"exposure\[0\] = 2\.0.*\[-1, 1\]"),
        ("fee_rate", [0.0] * 10 + [-0.1], r"fee_rate\[10\] = -0\.1"),
        ("fill_ratio", [0.0, 1.5] + [1.0] * 9, r"fill_ratio\[1\] = 1\.5.*\[0, 1\]"),
        ("price_offset", [float("inf")] * 11, r"price_offset\[0\] = inf.*finite"),
        ("fee_rate", [0.0] * 3, r"one entry per action.*'fee_rate': 3"),
    ],
)
def test_a_bad_execution_table_is_refused_with_the_column_and_row(column, values, message):
    with pytest.raises(ValueError, match=message):
        ExecutionTable(**{**presets.ODD_TABLE, column: values})


def test_minibatches_that_do_not_divide_a_collection_are_refused():
    with pytest.raises(ValueError, match=r"minibatches = 7 does not divide the 64000 experiences"):
        jt.PPOConfig(minibatches=7)


@pytest.mark.parametrize("value", [0, 2.5, True])
def test_counts_are_whole_numbers_of_at_least_one(value):
    for make, name in ((jt.EnvConfig, "episode_length"), (jt.PPOConfig, "updates")):
        with pytest.raises(ValueError, match=rf"{name} = {value} must be a whole number of at least 1"):
            make(**{name: value})


@pytest.mark.parametrize("count", ["updates", "n_episodes", "minibatches"])
def test_counts_that_outgrow_the_devices_integers_are_refused(count):
    with pytest.raises(ValueError, match=rf"{count} = 99999999999 must be .* below 2\*\*31"):
        jt.PPOConfig(**{count: 99_999_999_999})


def test_a_collection_that_outgrows_the_devices_integers_is_refused():
    with pytest.raises(
        ValueError, match=r"n_episodes = 65536 x timesteps_per_episode = 32768 makes a collection of 2\*\*31"
    ):
        jt.PPOConfig(n_episodes=2**16, timesteps_per_episode=2**15)


@pytest.mark.parametrize("config", [jt.PPOConfig, jt.DQNConfig])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, "fast", None])
def test_hyperparameters_out_of_range_are_named_with_what_was_wanted(config, value):
    hypers = config().hypers
    signed = ("barrier_scale", "diversity_scale", "curiosity_scale", "risk_weight", "entropy_coef")
    for field in dataclasses.fields(hypers):
        if field.name == "reward":
            continue
        if value == -1.0 and field.name in signed:
            config(hypers=dataclasses.replace(hypers, **{field.name: value}))
            continue
        with pytest.raises(ValueError, match=rf"{field.name} = {value!r} must be a number"):
            config(hypers=dataclasses.replace(hypers, **{field.name: value}))
    for field in dataclasses.fields(RewardScales):
        if value == -1.0 and field.name in signed:
            continue
        reward = dataclasses.replace(hypers.reward, **{field.name: value})
        with pytest.raises(ValueError, match=rf"{field.name} = {value!r} must be a number"):
            config(hypers=dataclasses.replace(hypers, reward=reward))


@pytest.mark.parametrize("name", ["gamma", "gae_lambda"])
def test_a_discount_above_one_is_refused(name):
    with pytest.raises(ValueError, match=rf"{name} = 1\.5 must be a number in \[0, 1\]"):
        jt.PPOConfig(hypers=PPOHypers(**{name: 1.5}))


@pytest.mark.parametrize("name", ["actor_hidden", "critic_hidden", "curiosity_hidden"])
@pytest.mark.parametrize(
    ("value", "message"),
    [
        *((empty, r"must hold at least one width") for empty in ((), "64", 64, None)),
        *((wrong, r"must be at least 1, and whole") for wrong in ((0,), (-3,), (8.5,), ((8,),))),
    ],
)
def test_hidden_layers_are_whole_widths_and_at_least_one(name, value, message):
    with pytest.raises(ValueError, match=rf"{name}(\[0\])? = .* {message}"):
        jt.PPOConfig(**{name: value})


@pytest.mark.parametrize("config", [jt.PPOConfig, jt.DQNConfig])
def test_a_reward_that_is_no_function_is_refused(config):
    with pytest.raises(ValueError, match=r"^reward_fn = 'x' must be a function \(transitions, scales, market, env\)"):
        config(reward_fn="x")


def test_forbidden_actions_are_rows_left_out():
    table = jt.ExecutionTable.net()
    takers = table.where([not maker for maker in table.is_maker])
    assert (takers.n_actions, any(takers.is_maker)) == (30, False)
    assert takers.exposure[:6] == (-1.0,) * 6
    long = table.long_only()
    assert long.n_actions == 27  # exposures 0, 0.5 and 1, nine orders each
    assert long == jt.ExecutionTable(
        **{
            name: getattr(table, name)[18:]
            for name in ("exposure", "fee_rate", "fill_ratio", "price_offset", "is_maker")
        }
    )
    with pytest.raises(ValueError, match="one entry per action"):
        table.where([False] * 45)
