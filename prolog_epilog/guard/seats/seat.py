# SPDX-License-Identifier: Apache-2.0
"""One GPU and its seat: passes reports of owner and device to the Decider, and applies its actions to the guest."""

import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil

from prolog_epilog.errors import NodeError
from prolog_epilog.guard.decide.aimd import FeedForwardAimd
from prolog_epilog.guard.decide.decider import Action, Decider, Do, GuestState
from prolog_epilog.guard.decide.law import Law
from prolog_epilog.guard.decide.muxflow import blind_law
from prolog_epilog.guard.hold.ending import Ending, GuestEnd
from prolog_epilog.guard.hold.guest_hold import Ground, GuestHold
from prolog_epilog.guard.hold.memory import MemoryTarget
from prolog_epilog.guard.hold.owner_memory import OwnerMemory
from prolog_epilog.guard.measure.device_reader import Look
from prolog_epilog.guard.measure.heartbeat import OwnerHeartbeat, Rank
from prolog_epilog.guard.measure.machine import State, Transition
from prolog_epilog.guard.measure.signals import DeviceSample, HostBeat
from prolog_epilog.guard.roll import Member, Seating
from prolog_epilog.guard.tell.figures import Figures
from prolog_epilog.guard.tell.notice import GuardNotice
from prolog_epilog.guard.tell.slow_work import SlowWork
from prolog_epilog.injob.word import WordBeat
from prolog_epilog.node import freezer
from prolog_epilog.node.xid_list import DRAINING_XIDS, remedy
from prolog_epilog.settings.guard_keys import GuardSettings
from prolog_epilog.tenants import reserve
from prolog_epilog.tenants.arrivals import Arrival

SLOPE = 0.3
"""Share of its speed that an owner loses at full duty of a guest whose slope was not predicted: 0 to 1."""
TELL_EVERY_S = 60.0
"""Time between reports of each GPU's state to berthd, changed or not, so that a new berthd knows."""

_TICK_S = 1.0
_MOST_GRACE = 99_999
"""The longest grace time in seconds that a notice can hold."""
_WAITS_S = 600.0
"""Seconds for which an unused GPU is watched until it is Healthy; berthd trusts a notice no longer than this."""
_ARRIVAL_GRACE_S = 2.0
"""The longest grace of a guest whose owner's Prolog waits until the guest's memory is free."""
_WARNING = signal.SIGUSR1
"""The signal that tells a guest to save its work because it has to leave; sent only to processes that catch it."""


@dataclass(slots=True)
class Counts:
    """The number of actions and ends, for the metrics."""

    actions: dict[str, int] = field(default_factory=dict)
    ended: int = 0
    killed: int = 0


class GuardedSeat:
    """Owner (host in names), guest and device of one GPU. Call `turn` ten times a second.

    All times are seconds of the steady clock.
    """

    def __init__(
        self,
        ground: Ground,
        settings: GuardSettings,
        slow_work: SlowWork,
        say: Callable[[str], None],
        uuid: str,
        now: float,
        *,
        mps: bool = False,
    ) -> None:
        """Makes an empty seat; `mps`: all jobs here share the fault domain of one MPS server."""
        self.uuid = uuid
        self.place = Seating(0)
        self.node = ""
        self.held: GuestHold | None = None
        self.counts = Counts()
        self.slowdown = 0.0
        self._ground, self._set, self._slow_work, self._say = ground, settings, slow_work, say
        self.decider = Decider(settings, self._law(None), blind_law(0.0), now, mps=mps)
        self._heartbeat = OwnerHeartbeat()
        self._memory = MemoryTarget(settings.machine)
        self._ending: Ending | None = None
        self._guest_end: GuestEnd | None = None
        self._arrival: Arrival | None = None
        self._peak = 0.0
        self._figures = Figures()
        self._ticked = self._told = now - _TICK_S
        self._look: Look | None = None
        self._sample: DeviceSample | None = None
        """The sample that the Decider has not seen yet."""
        self._empty_since = self._deserted_since = self._now = now
        self._broken = False
        self._told_state: State | None = None
        self._owner_memory = OwnerMemory(uuid)

    # The jobs that are here.

    @property
    def host(self) -> Member | None:
        """Returns the job that owns the GPU."""
        return self.place.host

    @property
    def state(self) -> State:
        """Returns the state of the GPU."""
        return self.decider.machine.state

    @property
    def rests(self) -> bool:
        """Tells whether the seat can be forgotten: no job is here, and no cool-down has to be kept."""
        machine = self.decider.machine
        quiet = machine.keeps and machine.cool_down <= self._set.machine.cool_down_s
        return self._is_empty and not self.recovers and quiet

    @property
    def recovers(self) -> bool:
        """Tells whether the device of an empty seat has to be watched: berthd was told that the GPU takes no guest."""
        if not self._is_empty or self._broken or self._told_state in {None, State.HEALTHY}:
            return False
        return self._now - self._deserted_since < _WAITS_S

    @property
    def _is_empty(self) -> bool:
        return self.place.host is None and self.held is None and self._arrival is None

    def seat(self, now: float, place: Seating) -> None:
        """Takes over the jobs that are here now, from the share files."""
        before, self.place = self.place, place
        if place != before:
            self._figures = Figures()
        if place.host != before.host:
            self._host_changed(now)
        if (self.held.guest if self.held else None) != place.guest:
            self._guest_changed(now, place.guest)

    def vacate(self, now: float) -> None:
        """Registers that no job is here any more."""
        if self.place.host is not None or self.held is not None:
            self.seat(now, Seating(self.place.position))

    def _host_changed(self, now: float) -> None:
        self._heartbeat, self._peak, self.slowdown = OwnerHeartbeat(), 0.0, 0.0
        if self.host is not None:
            self._do(now, self.decider.owner_arrives(now, self._law(self.held), tolerates=True, evict_grace_s=0.0))
            if self.held is not None and self._ending is None:
                self._log(f"job {self.host.job} came to GPU {self.uuid}, where job {self.held.guest.job} is a guest")
                self.held.hold(now, 0.0, by_freezer=self.held.by_freezer)
        elif self.held is not None and self._ending is None and self._arrival is None:
            self._log(f"the host of GPU {self.uuid} is gone: job {self.held.guest.job} has it alone")
            self.held.hold(now, 1.0, by_freezer=False)

    def _guest_changed(self, now: float, guest: Member | None) -> None:
        if self.held is not None:
            self.held.release()
            self.decider.guest_left(now)
            self.held = self._ending = None
        if guest is None:
            return
        self.held = GuestHold(self._ground, self._set.action, self.uuid, guest)
        self._guest_end = GuestEnd(self._slow_work, guest)
        self._memory = MemoryTarget(self._set.machine)
        law, blind = self._law(self.held), blind_law(self._peak, held=guest.share is not None)
        self._do(now, self.decider.guest_arrives(now, law, blind))
        if self.host is None and self._arrival is None:
            self.held.hold(now, 1.0, by_freezer=False)

    def _law(self, held: GuestHold | None) -> Law:
        slope = SLOPE if held is None or held.guest.slope is None else held.guest.slope
        serves = held is not None and self._heartbeat.serves
        return FeedForwardAimd(self._set.bound.slowdown, min(1.0, slope), service=serves)

    # Events.

    def arrives(self, now: float, arrival: Arrival) -> None:
        """Handles a job with whole GPUs that came here and takes no guest."""
        if self._arrival is not None:
            return
        self._arrival = arrival
        grace = min(self._set.action.evict_grace_s, _ARRIVAL_GRACE_S)
        if arrival.planned:
            law = self._law(self.held)
            self._do(now, self.decider.owner_arrives(now, law, tolerates=False, evict_grace_s=grace))
        else:
            self._do(now, self.decider.end_now(now, "a job without a berth was given this GPU"))

    @property
    def is_safe(self) -> bool:
        """Tells whether the job that came finds no guest that computes or holds memory."""
        if self.held is None or (self._ending is not None and self._ending.over):
            return True
        look = self._look
        return look is not None and look.sample.at > self.held.told_at and not self._is_on_gpu()

    def left(self, pending: Collection[Arrival]) -> None:
        """Forgets the job that came once its note is gone: its guest has left, or the job is over or elsewhere."""
        if self._arrival not in pending:
            self._arrival = None

    def stirs(self, now: float) -> None:
        """Notes that another process thawed the guest, as Slurm does before it ends a job."""
        if self._guest_end is not None:
            self._guest_end.stirs(now)

    def xid(self, now: float, number: int) -> None:
        """Handles a fault of this GPU that the driver reported."""
        # The Xid does not show whose fault it was. MPS's log names the cause; with time slicing only the causing
        # program fails.
        self._log(f"Xid {number} on GPU {self.uuid}; what to do: {remedy(number) or 'not known to Berth'}")
        self._broken = self._broken or number in DRAINING_XIDS
        self._do(now, self.decider.fault(now, number))

    # Ten times a second.

    def turn(self, now: float, words: Mapping[Rank, WordBeat], look: Look | None) -> None:
        """Reads the beats and the device, decides, and acts."""
        fresh = look if look is not self._look else None
        self._look = look
        if fresh is not None:
            self._sample = self._judged(fresh)
        alone = self.held is None or (self.held.duty == 0.0 and self.decider.ran_alone(now, self.held.held_since))
        beat = self._hear(now, words, alone=alone) if self.host is not None else None
        if fresh is not None:
            self._note(fresh, alone=alone)
        if self.host is not None:
            self._keep_memory(now, self.host, words, fresh)
        self._count(now, beat, fresh)
        guest = self._guest(now)
        disobeys = guest is not None and not guest.obeys
        if beat is not None or fresh is not None or disobeys or now - self._ticked >= _TICK_S:
            self._decide(now, beat, guest)
            if beat is not None and self.decider.baseline.known:
                self.slowdown = beat.took / beat.steps / self.decider.baseline.step - 1.0
        self._go_on(now)

    def mistrust(self, now: float) -> None:
        """Resets the seat because its reports cannot be used: the owner is measured anew, and is silent until then.

        Parts that do not depend on the reports, such as a guest's end, go on.
        """
        self._heartbeat, self._figures, self.slowdown = OwnerHeartbeat(), Figures(), 0.0
        self._memory = MemoryTarget(self._set.machine)
        self._do(now, self.decider.mistrust(now, self._law(self.held)))
        # A guest that cannot be heard either may be the cause: the freezer needs no answer from it.
        self._decide(now, None, GuestState(obeys=False) if self.held is not None and self._ending is None else None)
        self._go_on(now)

    def _decide(self, now: float, beat: HostBeat | None, guest: GuestState | None) -> None:
        self._ticked = now
        sample, self._sample = self._sample, None
        self._do(now, self.decider.tick(now, beat, sample, guest, watched=not self._is_empty or self.recovers))

    def _go_on(self, now: float) -> None:
        """Does what has to be repeated at each turn."""
        if self._ending is None and self.held is not None:
            self._heed_slurm(now, self.held)
        if self._ending is not None:
            self._end(now, self._ending)
        if self.held is not None:
            self.held.memory = self._memory.wish(now, self._look, self.held)
            self.held.quota = self._owner_memory.quota(self.host, self.held.guest, self._look)
            self.held.measured = self.host is not None and self._ending is None and self.decider.measures(now)
            self.held.turn(now)
            if self.held.by_freezer and 0.0 < self.held.duty < 1.0:
                self.decider.felt(now, runs=not self.held.frozen)
        self._changes(now)

    def _hear(self, now: float, words: Mapping[Rank, WordBeat], *, alone: bool) -> HostBeat | None:
        measure = self._heartbeat.measure
        beat = self._heartbeat.take(now, words, alone=alone)
        if self._heartbeat.measure != measure:
            # The gate is shut while the number of launches in a step is learned: otherwise harm would count as the
            # usual pace.
            self._do(now, self.decider.owner_arrives(now, self._law(self.held), tolerates=True, evict_grace_s=0.0))
        return beat

    def _note(self, look: Look, *, alone: bool) -> None:
        busy = look.sample.sm_active if look.sample.sm_active is not None else look.sample.utilisation
        if alone and self.host is not None and busy is not None:
            self._peak = max(self._peak, busy)

    def _keep_memory(self, now: float, host: Member, words: Mapping[Rank, WordBeat], fresh: Look | None) -> None:
        """Keeps the owner's memory for the owner."""
        memory, held = self._owner_memory, None if self._ending is not None and self._ending.over else self.held
        memory.tell(now, host, held, self._look)
        if held is None:
            return
        if self._ending is None and fresh is not None:
            need = reserve.need_mib(host, held.guest)
            if need is None:
                grace = self._set.action.evict_grace_s
                self._do(now, self.decider.send_away(now, "how much memory its host needs is not known", grace))
            elif cause := memory.breach(need, held.guest, fresh):
                self._do(now, self.decider.end_now(now, cause))
        if memory.is_awaited(words):
            if self._ending is None:
                self._do(now, self.decider.end_now(now, "an allocation of its host waits for the memory that it holds"))
            if self._ending is not None:
                self._ending.hurry()

    @property
    def _alone(self) -> int:
        """Returns the job that has the GPU to itself; 0 if there is none."""
        if self._arrival is not None or (self.host is None) == (self.place.guest is None):
            return 0
        one = self.host or self.place.guest
        return one.job if one is not None else 0

    def _count(self, now: float, beat: HostBeat | None, fresh: Look | None) -> None:
        if fresh is not None and self._alone:
            self._figures.look(fresh.sample, fresh.memory_bytes)
        if self.host is not None and self.held is not None:
            self._figures.turn(now, self.held.duty)
            if beat is not None and self.held.duty > 0.0:
                self._figures.beat(beat)

    def _judged(self, look: Look) -> DeviceSample:
        # A guest that is alone may use all of the GPU: no other job is harmed.
        harmless = self.host is None and self._arrival is None
        return replace(look.sample, utilisation=None, sm_active=None) if harmless else look.sample

    def _guest(self, now: float) -> GuestState | None:
        if self.held is None or self._ending is not None:
            return None
        obeys = self.held.obeys(now, on_gpu=self._is_on_gpu())
        return GuestState(runs=True, obeys=obeys, held_since=self.held.held_since)

    def _is_on_gpu(self) -> bool:
        # Without a reading of the device, the guest counts as being there.
        return self.held is not None and (self._look is None or self.held.guest.job in self._look.jobs)

    def _heed_slurm(self, now: float, held: GuestHold) -> None:
        assert self._guest_end is not None, "it came with the guest"  # noqa: S101 - narrows the type
        if held.stirred:
            held.stirred = False
            self._guest_end.stirs(now)
        termed = self._guest_end.turn(now)
        if termed is not None:
            self._log(f"job {held.guest.job} on GPU {self.uuid} was sent away, and Slurm has sent it SIGTERM")
            self._ending = Ending(held, self._ground.cgroups, None, termed)

    def _end(self, now: float, ending: Ending) -> None:
        was_over = ending.over
        ending.turn(now)
        if ending.over and not was_over:
            self.counts.ended += 1
            self.counts.killed += ending.killed
            how = "was killed" if ending.killed else "ended"
            self._log(f"job {ending.held.guest.job} {how} on GPU {self.uuid}")

    def _changes(self, now: float) -> None:
        self._now = now
        if self.held is not None:
            self._empty_since = now
        if not self._is_empty:
            self._deserted_since = now
        recovers = self.state is State.DISABLED and not self._broken and self._look is not None
        # A program's fault ended with its program; only a device's fault needs a human.
        if recovers and now - self._empty_since >= self._set.machine.cool_down_s:
            self._note_transition(self.decider.machine.repaired(now))
        transitions = self.decider.transitions
        while transitions:
            one = transitions.popleft()
            self._log(f"GPU {self.uuid} is {one.after.value}, was {one.before.value}: {one.cause}")
            self._told = now - TELL_EVERY_S
        if now - self._told >= TELL_EVERY_S and (not self._is_empty or self.recovers):
            self._tell(now, "state")

    def _note_transition(self, one: Transition | None) -> None:
        if one is not None:
            self.decider.transitions.append(one)

    # Actions.

    def _do(self, now: float, actions: Sequence[Action]) -> None:
        problems: list[NodeError | OSError] = []
        for action in actions:
            if self.held is None and action.do is not Do.DRAIN:
                continue
            self.counts.actions[action.do.value] = self.counts.actions.get(action.do.value, 0) + 1
            try:
                self._act(now, action)
            except (NodeError, OSError) as problem:
                # A decision is made only once, so the actions after one that failed are carried out all the same.
                problems.append(problem)
        if problems:
            raise problems[0]

    def _act(self, now: float, action: Action) -> None:
        held = self.held
        if action.do is Do.DRAIN:
            self._log(f"the node is taken out of service: GPU {self.uuid}: {action.cause}")
            self._slow_work.drain(self.node, f"GPU {self.uuid}: {action.cause}")
        elif held is None or self._ending is not None:
            if action.do is Do.REQUEUE and self._ending is not None and not self._ending.over:
                self._slow_work.requeue(self._ending.held.guest.job)
        elif action.do in {Do.GATE, Do.FREEZER}:
            self._hold(now, held, action)
        elif action.do is Do.MEMORY:
            self._log(f"job {held.guest.job} is asked to give memory back: {action.cause}")
            self._memory.ask(now, self._look, held)
        elif action.do is Do.LEAVE:
            warned = freezer.send(held.guest.job, _WARNING, root=self._ground.cgroups, catchers_only=True)
            self._log(
                f"job {held.guest.job} has to leave GPU {self.uuid}: {action.cause}; {warned} processes were warned"
            )
            self._tell(now, "leave")
        elif action.do is Do.TERMINATE:
            self._log(f"job {held.guest.job} is ended on GPU {self.uuid}: {action.cause}")
            notice = self._notice("evict")
            ask = lambda lives: self._slow_work.evict(held.guest, notice, lives=lives)  # noqa: E731 - once
            self._ending = Ending(held, self._ground.cgroups, ask, now)

    def _hold(self, now: float, held: GuestHold, action: Action) -> None:
        alone = self.host is None and self._arrival is None
        if alone and action.duty > 0.0:
            return
        if action.do is Do.FREEZER and not held.by_freezer:
            self._log(f"job {held.guest.job} is held by the freezer on GPU {self.uuid}: {action.cause}")
            self.decider.begin_anew(now, self._law(held))
        held.hold(now, action.duty, by_freezer=action.do is Do.FREEZER)

    def _notice(self, word: str) -> GuardNotice:
        guest = 0 if self.held is None else self.held.guest.job
        grace = min(_MOST_GRACE, ceil(self._set.action.evict_grace_s)) if word == "leave" else None
        host = 0 if self.host is None else self.host.job
        self._told_state = self.state
        figures = self._figures.told(self._alone, host, self.decider.baseline)
        self._figures = Figures()
        return GuardNotice(self.node, self.place.position, self.state.value.lower(), word, guest, grace, figures)

    def _tell(self, now: float, word: str) -> None:
        self._told = now
        if self.node:
            self._slow_work.notify(self._notice(word))

    def _log(self, sentence: str) -> None:
        self._say(sentence)
