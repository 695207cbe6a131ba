"""Our weights in PyTorch: modules of the same names load the files as they are, and give the same outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jaxrl_trade as jt
from jaxrl_trade import networks

torch = pytest.importorskip("torch")

from safetensors.torch import load_file  # noqa: E402

pytestmark = pytest.mark.peers
N_OBS, SLOPE = 54, 0.01
PPO, DQN = jt.PPOConfig(), jt.DQNConfig()


class Perceptron(torch.nn.Module):
    """Layers `{prefix}_layer_0`, ..., `{prefix}_output`."""

    def __init__(self, prefix: str, widths: tuple[int, ...]) -> None:
        super().__init__()
        names = [f"{prefix}_layer_{i}" for i in range(len(widths) - 2)] + [f"{prefix}_output"]
        for name, n_in, n_out in zip(names, widths, widths[1:], strict=False):
            self.add_module(name, torch.nn.Linear(n_in, n_out))

    def forward(self, x: Any) -> Any:
        *hidden, output = self.children()
        for layer in hidden:
            x = torch.nn.functional.leaky_relu(layer(x), SLOPE)
        return output(x)


class Dueling(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shared_layer_0, self.shared_layer_1 = torch.nn.Linear(N_OBS, 256), torch.nn.Linear(256, 256)
        self.value_layer_0, self.value_output = torch.nn.Linear(256, 128), torch.nn.Linear(128, 1)
        self.advantage_layer_0, self.advantage_output = torch.nn.Linear(256, 128), torch.nn.Linear(128, 45)

    def forward(self, x: Any) -> Any:
        act = torch.nn.LeakyReLU(SLOPE)
        x = act(self.shared_layer_1(act(self.shared_layer_0(x))))
        advantage = self.advantage_output(act(self.advantage_layer_0(x)))
        return self.value_output(act(self.value_layer_0(x))) + advantage - advantage.mean(-1, keepdim=True)


MODULES = {
    "actor": lambda: Perceptron("policy", (N_OBS, 128, 64, 45)),
    "critic": lambda: Perceptron("value", (N_OBS, 512, 384, 256, 128, 64, 1)),
    "curiosity": lambda: Perceptron("forward", (35, 64, 32)),
    "dueling": Dueling,
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("weights")
    params = {"ppo": jt.init_ppo(jax.random.key(0), PPO), "dqn": jt.init_dqn(jax.random.key(1), DQN)}
    for name, each in params.items():
        jt.save_weights(folder / name, each)
    return folder, params


@pytest.mark.parametrize("name", MODULES)
def test_a_torch_module_of_the_same_names_gives_the_same_outputs(saved: tuple[Path, dict[str, Any]], name: str) -> None:
    folder, params = saved
    agent = "dqn" if name == "dueling" else "ppo"
    module = MODULES[name]()
    module.load_state_dict(load_file(folder / agent / f"{name}.safetensors"), strict=True)
    ours = {
        "actor": networks.actor(PPO),
        "critic": networks.critic(PPO),
        "curiosity": networks.curiosity(PPO, 51),
        "dueling": networks.dueling(DQN),
    }[name]
    x = np.random.default_rng(0).normal(size=(64, 35 if name == "curiosity" else N_OBS)).astype(np.float32)
    with torch.no_grad():
        theirs = module(torch.from_numpy(x)).numpy()
    wanted = np.asarray(ours.evaluate(getattr(params[agent], name), x))
    np.testing.assert_allclose(theirs, wanted, rtol=1e-4, atol=1e-5)  # float32, sums of up to 512 terms
