"""How a kernel is launched on a stream: the driver's CUlaunchConfig, made once and used for every launch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mktune.executors.driver_calls import driver
from mktune.executors.functions import device_priority
from mktune.launch import Launch


def launch_config(launch: Launch, priority: int, early: Sequence[Any] = ()) -> Any:
    """A config without a stream. `priority` is the plan's; `early` holds further attributes."""
    d = driver()
    ids, config, attributes = d.CUlaunchAttributeID, d.CUlaunchConfig(), list(early)
    config.gridDimX, config.gridDimY, config.gridDimZ = launch.grid
    config.blockDimX, config.blockDimY, config.blockDimZ = launch.block, 1, 1
    config.sharedMemBytes = launch.smem
    if launch.cluster > 1:
        cluster = _attribute(ids.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
        cluster.value.clusterDim.x, cluster.value.clusterDim.y, cluster.value.clusterDim.z = launch.cluster, 1, 1
        attributes.append(cluster)
    if priority:
        attributes.append(_attribute(ids.CU_LAUNCH_ATTRIBUTE_PRIORITY))
        attributes[-1].value.priority = device_priority(priority)
    config.attrs, config.numAttrs = attributes, len(attributes)
    return config


def serialization() -> Any:
    """The launch may start before the one ahead of it in its stream has ended, once that one's trigger has fired."""
    attribute = _attribute(driver().CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
    attribute.value.programmaticStreamSerializationAllowed = 1
    return attribute


def programmatic_event(event: Any, at_block_start: bool) -> Any:
    """The launch records `event` by its trigger, or at the start of its blocks."""
    attribute = _attribute(driver().CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT)
    attribute.value.programmaticEvent.event = event
    attribute.value.programmaticEvent.triggerAtBlockStart = int(at_block_start)
    return attribute


def _attribute(identity: Any) -> Any:
    attribute = driver().CUlaunchAttribute()
    attribute.id = identity
    return attribute
