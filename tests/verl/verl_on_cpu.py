"""What verl needs to train on a CPU, by its own registries: a platform, and an engine that samples.

All else is verl's: its trainer, Ray, TransferQueue, FSDP2 (on gloo), data, rewards, checkpoints.
verl imports this file where `VERL_USE_EXTERNAL_MODULES=verl_on_cpu`.
"""

import contextlib
import os
import types

os.environ["VERL_PLATFORM"] = "cpu"
os.environ["VERL_ENGINE_DEVICE"] = "cuda"  # under which verl has registered its FSDP engine

import torch
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry
from verl.workers.rollout import base, replica


def cpu_module():
    """torch.cpu with what verl asks torch.cuda for."""
    module = types.ModuleType("cpu")
    vars(module).update(vars(torch.cpu))
    counts = ["memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"]
    vars(module).update(dict.fromkeys(counts, lambda *device: 0))
    quiet = ["empty_cache", "reset_peak_memory_stats", "manual_seed", "manual_seed_all"]
    vars(module).update(dict.fromkeys(quiet, lambda *given: None))
    module.mem_get_info = lambda *device: (1, 1)
    module.get_device_name = lambda *device: "CPU"
    module.get_rng_state = torch.get_rng_state
    module.set_rng_state = torch.set_rng_state
    return module


@PlatformRegistry.register("cpu")
class CPU(PlatformBase):
    device_name = "cpu"
    vendor_name = "cpu"
    device_module = cpu_module()

    def is_available(self):
        return True

    def current_device(self):
        return torch.device("cpu")

    def device_count(self):
        return 1

    def set_device(self, device_index):
        pass

    def synchronize(self, device_index=None):
        pass

    def manual_seed(self, seed):
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def set_allocator_settings(self, settings):
        pass

    def empty_cache(self):
        pass

    def get_device_capability(self, device_index=0):
        return None, None

    def communication_backend_name(self):
        return "gloo"

    def visible_devices_envvar(self):
        return "CPU_VISIBLE_DEVICES"

    def nvtx_range(self, msg):
        return contextlib.nullcontext()

    def profiler_start(self):
        pass

    def profiler_stop(self):
        pass

    def ray_resource_name(self):
        return "GPU"  # of which Ray is told a number: a name only

    def ray_noset_envvars(self):
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def is_ipc_supported(self):
        return False

    def cudart(self):
        return None


def load_replica():
    import cpu_engine

    return cpu_engine.Replica


replica.RolloutReplicaRegistry.register("cpu", load_replica)
base._ROLLOUT_REGISTRY["cpu", "async"] = "cpu_engine.Adapter"

init_process_group = torch.distributed.init_process_group


def init_gloo(backend=None, *given, **named):
    """torch takes a device once, and verl names the host and the device."""
    backend = "gloo" if backend == "cpu:gloo,cpu:gloo" else backend
    return init_process_group(backend, *given, **named)


torch.distributed.init_process_group = init_gloo
