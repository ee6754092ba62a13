"""What comes of two calls that meet a tree in some state: see `tests.sql.test_races_trees`."""

from __future__ import annotations

OUTCOMES = """
running_hot
  advance, terminate -> ok+ True | 0 terminated | 1 A completed, 1 B completed, 1 C terminated => terminated: enough
  terminate, advance -> True ok- | 0 terminated | 1 A completed, 1 B terminated => terminated: enough
  advance, cancel -> ok+ True | 0 open | 1 A completed, 1 B completed | 1 C pending to be cancelled => cancelled: stop
  cancel, advance -> True ok- | 0 open | 1 A completed | 1 B pending to be cancelled => cancelled: stop
ending_hot
  close, terminate -> ok+ False | 0 completed | 1 A completed, 1 B completed, 1 C completed => completed
  terminate, close -> True ok- | 0 terminated | 1 A completed, 1 B completed, 1 C terminated => terminated: enough
  close, cancel -> ok+ False | 0 completed | 1 A completed, 1 B completed, 1 C completed => completed
  cancel, close -> True ok- | 0 open | 1 A completed, 1 B completed | 1 C pending to be cancelled => cancelled: stop
running_in_a_chain
  advance, terminate -> ok+ True | 0 terminated | 1 A completed, 1 B completed, 1 C terminated => terminated: enough
  terminate, advance -> True ok- | 0 terminated | 1 A terminated => terminated: enough
  advance, cancel -> ok+ True | 0 open | 1 A completed, 1 B completed | 1 C pending to be cancelled => cancelled: stop
  cancel, advance -> True ok- | 0 open |  | 1 A pending to be cancelled => cancelled: stop
failing
  advance, terminate -> ok+ True | 0 terminated, 0/0.1 failed | 1 F failed, 1 H terminated, 1 P completed => terminated: enough
  terminate, advance -> True ok- | 0 terminated, 0/0.1 failed | 1 F failed, 1 P terminated => terminated: enough
  advance, cancel -> ok+ True | 0 open, 0/0.1 failed | 1 F failed, 1 P completed | 1 H pending to be cancelled => cancelled: stop
  cancel, advance -> True ok- | 0 open, 0/0.1 failed | 1 F failed | 1 P pending to be cancelled => completed, H
handing_back
  give back, terminate -> ok+ True | 0 terminated | 1 A terminated => terminated: enough
  terminate, give back -> True ok- | 0 terminated | 1 A terminated => terminated: enough
  give back, cancel -> ok+ True | 0 open |  | 1 A pending to be cancelled => completed, H
  cancel, give back -> True ok- | 0 open |  | 1 A pending to be cancelled => completed, H
backing_off
  wake, terminate -> 1 True | 0 terminated | 1 R terminated => terminated: enough
  terminate, wake -> True 0 | 0 terminated | 1 R terminated => terminated: enough
  wake, cancel -> 1 True | 0 open |  | 1 R pending to be cancelled => completed, H
  cancel, wake -> True 0 | 0 open |  | 1 R pending to be cancelled => completed, H
sleeping_with_a_handler
  wake, terminate -> 1 True | 0 terminated | 1 B terminated, 1 Z completed => terminated: enough
  terminate, wake -> True 0 | 0 terminated | 1 B terminated, 1 Z completed => terminated: enough
  wake, cancel -> 1 True | 0 open | 1 Z completed | 1 B pending to be cancelled => completed, H
  cancel, wake -> True 0 | 0 open | 1 Z completed | 1 B pending to be cancelled => completed, H
delivering
  advance, terminate -> ok+ True | 0 terminated | 1 A completed, 1 H terminated => terminated: enough
  terminate, advance -> True ok- | 0 terminated | 1 A terminated => terminated: enough
  advance, cancel -> ok+ True | 0 open | 1 A completed | 1 H pending to be cancelled => completed, H, HC
  cancel, advance -> True ok- | 0 open |  | 1 A pending to be cancelled => completed, H
  cancel, cancel too -> True True | 0 open |  | 1 A pending to be cancelled => completed, H
  cancel too, cancel -> True True | 0 open |  | 1 A pending to be cancelled => completed, H
  sweep, cancel -> ['deadline'] True | 0 open |  | 1 A pending to be cancelled => completed, H
  cancel, sweep -> True [] | 0 open |  | 1 A pending to be cancelled => completed, H
delivering_to_nobody
  close, terminate -> ok+ False | 0 cancelled | 1 A cancelled => cancelled: first
  terminate, close -> True ok- | 0 terminated | 1 A terminated => terminated: enough
  close, cancel -> ok+ False | 0 cancelled | 1 A cancelled => cancelled: first
  cancel, close -> True ok- | 0 open |  | 1 A pending to be cancelled => cancelled: stop
handling
  close, terminate -> ok+ False | 0 completed | 1 A completed, 1 H completed => completed, H
  terminate, close -> True ok- | 0 terminated | 1 A completed, 1 H terminated => terminated: enough
  close, cancel -> ok+ False | 0 completed | 1 A completed, 1 H completed => completed, H
  cancel, close -> True ok- | 0 open | 1 A completed | 1 H pending to be cancelled => completed, H, HC
answered
  resume, terminate -> False True | 0 terminated | 1 I terminated => terminated: enough
  terminate, resume -> True False | 0 terminated | 1 I terminated => terminated: enough
  resume, cancel -> False True | 0 open |  | 1 I pending to be cancelled => cancelled: stop
  cancel, resume -> True False | 0 open |  | 1 I pending to be cancelled => cancelled: stop
answered_and_running
  advance, terminate -> ok+ True | 0 terminated | 1 D terminated, 1 I completed => terminated: enough
  terminate, advance -> True ok- | 0 terminated | 1 I terminated => terminated: enough
  advance, cancel -> ok+ True | 0 open | 1 I completed | 1 D pending to be cancelled => cancelled: stop
  cancel, advance -> True ok- | 0 open |  | 1 I pending to be cancelled => cancelled: stop
  resume, terminate -> False True | 0 terminated | 1 I terminated => terminated: enough
  terminate, resume -> True False | 0 terminated | 1 I terminated => terminated: enough
  resume, cancel -> False True | 0 open |  | 1 I pending to be cancelled => cancelled: stop
  cancel, resume -> True False | 0 open |  | 1 I pending to be cancelled => cancelled: stop
expanding_and_due
  arrive, terminate -> ok+ True | 0 terminated | 1 J terminated, 1 S completed, 1 W completed, 1 W terminated => terminated: enough
  terminate, arrive -> True ok- | 0 terminated | 1 J terminated, 1 S completed, 2 W terminated => terminated: enough
  arrive, cancel -> ok+ True | 0 open | 1 S completed, 1 W completed | 1 J joining, 1 W pending to be cancelled => completed, HW
  cancel, arrive -> True ok- | 0 open | 1 S completed | 1 J joining, 2 W pending to be cancelled => completed, HW, HW
  cancel, cancel too -> True True | 0 open | 1 S completed | 1 J joining, 2 W pending to be cancelled => completed, HW, HW
  cancel too, cancel -> True True | 0 open | 1 S completed | 1 J joining, 2 W pending to be cancelled => completed, HW, HW
expanding_and_arrived
  claim, terminate -> ['J'] True | 0 terminated | 1 J terminated, 1 S completed, 2 W completed => terminated: enough
  terminate, claim -> True [] | 0 terminated | 1 J terminated, 1 S completed, 2 W completed => terminated: enough
  claim, cancel -> ['J'] True | 0 open | 1 S completed, 2 W completed | 1 J pending to resolve => cancelled: stop
  cancel, claim -> True ['J'] | 0 open | 1 S completed, 2 W completed | 1 J running to resolve => cancelled: stop
last_arrival
  arrive, terminate -> ok+! True | 0 terminated | 1 J terminated, 1 S completed, 2 W completed => terminated: enough
  terminate, arrive -> True ok- | 0 terminated | 1 J terminated, 1 S completed, 1 W completed, 1 W terminated => terminated: enough
  arrive, cancel -> ok+! True | 0 open | 1 S completed, 2 W completed | 1 J pending to be cancelled => cancelled: stop
  cancel, arrive -> True ok- | 0 open | 1 S completed, 1 W completed | 1 J joining, 1 W pending to be cancelled => cancelled: stop
last_arrival_by_a_handler
  arrive, terminate -> ok+! True | 0 terminated | 1 HW completed, 1 J terminated, 1 S completed, 2 W completed => terminated, HW: enough
  terminate, arrive -> True ok- | 0 terminated | 1 HW terminated, 1 J terminated, 1 S completed, 2 W completed => terminated: enough
  arrive, cancel -> ok+! True | 0 open | 1 HW completed, 1 S completed, 2 W completed | 1 J pending to be cancelled => completed, HJ, HW
  cancel, arrive -> True ok- | 0 open | 1 S completed, 2 W completed | 1 HW pending to be cancelled, 1 J joining => cancelled: stop
last_arrival_cancelled
  arrive, terminate -> ok+ True | 0 terminated | 1 J terminated, 1 S completed, 1 W cancelled, 1 W terminated => terminated: enough
  terminate, arrive -> True ok- | 0 terminated | 1 J terminated, 1 S completed, 2 W terminated => terminated: enough
  arrive, cancel -> ok+ True | 0 open | 1 S completed, 1 W cancelled | 1 J joining, 1 W pending to be cancelled => cancelled: stop
  cancel, arrive -> True ok- | 0 open | 1 S completed | 1 J joining, 2 W pending to be cancelled => cancelled: stop
  arrive too, terminate -> ok+ True | 0 terminated | 1 J terminated, 1 S completed, 1 W cancelled, 1 W terminated => terminated: enough
  terminate, arrive too -> True ok- | 0 terminated | 1 J terminated, 1 S completed, 2 W terminated => terminated: enough
  arrive too, cancel -> ok+ True | 0 open | 1 S completed, 1 W cancelled | 1 J joining, 1 W pending to be cancelled => cancelled: stop
  cancel, arrive too -> True ok- | 0 open | 1 S completed | 1 J joining, 2 W pending to be cancelled => cancelled: stop
folding
  close, terminate -> ok+ False | 0 completed | 1 J completed, 1 S completed, 2 W completed => completed
  terminate, close -> True ok- | 0 terminated | 1 J terminated, 1 S completed, 2 W completed => terminated: enough
  close, cancel -> ok+ False | 0 completed | 1 J completed, 1 S completed, 2 W completed => completed
  cancel, close -> True ok- | 0 open | 1 S completed, 2 W completed | 1 J pending to be cancelled => completed, HJ
folding_and_due
  claim, terminate -> ['J'] True | 0 terminated | 1 J terminated, 1 S completed, 2 W completed => terminated: enough
  terminate, claim -> True [] | 0 terminated | 1 J terminated, 1 S completed, 2 W completed => terminated: enough
  claim, cancel -> ['J'] True | 0 open | 1 S completed, 2 W completed | 1 J pending to be cancelled => completed, HJ
  cancel, claim -> True ['J'] | 0 open | 1 S completed, 2 W completed | 1 J running to be cancelled => completed, HJ
delivering_to_a_fan_in
  advance, terminate -> ok+ True | 0 terminated | 1 HJ terminated, 1 J completed, 1 S completed, 2 W completed => terminated: enough
  terminate, advance -> True ok- | 0 terminated | 1 J terminated, 1 S completed, 2 W completed => terminated: enough
  advance, cancel -> ok+ True | 0 open | 1 J completed, 1 S completed, 2 W completed | 1 HJ pending to be cancelled => cancelled: stop
  cancel, advance -> True ok- | 0 open | 1 S completed, 2 W completed | 1 J pending to be cancelled => completed, HJ
resolving_and_due
  claim, terminate -> ['J'] True | 0 terminated | 1 J terminated, 1 S completed, 1 W completed, 1 W failed => terminated: enough
  terminate, claim -> True [] | 0 terminated | 1 J terminated, 1 S completed, 1 W completed, 1 W failed => terminated: enough
  claim, cancel -> ['J'] True | 0 open | 1 S completed, 1 W completed, 1 W failed | 1 J running to resolve => failed
  cancel, claim -> True ['J'] | 0 open | 1 S completed, 1 W completed, 1 W failed | 1 J running to resolve => failed
resolving_inside
  resolve, terminate -> ok+ True | 0 terminated | 1 J terminated, 1 K failed, 1 K terminated, 1 S completed, 2 T completed, 1 W completed, 1 W failed, 2 W terminated => terminated: enough
  terminate, resolve -> True ok- | 0 terminated | 1 J terminated, 2 K terminated, 1 S completed, 2 T completed, 1 W completed, 1 W failed, 2 W terminated => terminated: enough
  resolve, cancel -> ok+ True | 0 open | 1 K failed, 1 S completed, 2 T completed, 1 W completed, 1 W failed | 1 J joining, 1 K joining, 2 W pending to be cancelled => failed
  cancel, resolve -> True ok+ | 0 open | 1 K failed, 1 S completed, 2 T completed, 1 W completed, 1 W failed | 1 J joining, 1 K joining, 2 W pending to be cancelled => failed
  arrive, terminate -> ok+ True | 0 terminated | 1 J terminated, 2 K terminated, 1 S completed, 2 T completed, 2 W completed, 1 W failed, 1 W terminated => terminated: enough
  terminate, arrive -> True ok- | 0 terminated | 1 J terminated, 2 K terminated, 1 S completed, 2 T completed, 1 W completed, 1 W failed, 2 W terminated => terminated: enough
  arrive, cancel -> ok+ True | 0 open | 1 S completed, 2 T completed, 2 W completed, 1 W failed | 1 J joining, 1 K joining, 1 K running to resolve, 1 W pending to be cancelled => failed
  cancel, arrive -> True ok- | 0 open | 1 S completed, 2 T completed, 1 W completed, 1 W failed | 1 J joining, 1 K joining, 1 K running to resolve, 2 W pending to be cancelled => failed
resolving_last
  resolve, terminate -> ok+! True | 0 terminated | 1 J terminated, 2 K failed, 1 S completed, 2 T completed, 2 W completed, 2 W failed => terminated: enough
  terminate, resolve -> True ok- | 0 terminated | 1 J terminated, 1 K failed, 1 K terminated, 1 S completed, 2 T completed, 2 W completed, 2 W failed => terminated: enough
  resolve, cancel -> ok+! True | 0 open | 2 K failed, 1 S completed, 2 T completed, 2 W completed, 2 W failed | 1 J pending to resolve => failed
  cancel, resolve -> True ok+! | 0 open | 2 K failed, 1 S completed, 2 T completed, 2 W completed, 2 W failed | 1 J pending to resolve => failed
fan_in_interrupting
  park, terminate -> ok+ True | 0 terminated | 1 I terminated, 1 S completed, 2 W completed => terminated: enough
  terminate, park -> True ok- | 0 terminated | 1 I terminated, 1 S completed, 2 W completed => terminated: enough
  park, cancel -> ok+ True | 0 open | 1 S completed, 2 W completed | 1 I pending to be cancelled => cancelled: stop
  cancel, park -> True ok- | 0 open | 1 S completed, 2 W completed | 1 I pending to be cancelled => cancelled: stop
  resume, terminate -> False True | 0 terminated | 1 I terminated, 1 S completed, 2 W completed => terminated: enough
  terminate, resume -> True False | 0 terminated | 1 I terminated, 1 S completed, 2 W completed => terminated: enough
  resume, cancel -> False True | 0 open | 1 S completed, 2 W completed | 1 I pending to be cancelled => cancelled: stop
  cancel, resume -> True False | 0 open | 1 S completed, 2 W completed | 1 I pending to be cancelled => cancelled: stop
fan_in_interrupted
  resume, terminate -> True True | 0 terminated | 1 I terminated, 1 S completed, 2 W completed => terminated: enough
  terminate, resume -> True False | 0 terminated | 1 I terminated, 1 S completed, 2 W completed => terminated: enough
  resume, cancel -> True True | 0 open | 1 S completed, 2 W completed | 1 I pending to be cancelled => cancelled: stop
  cancel, resume -> True False | 0 open | 1 S completed, 2 W completed | 1 I pending to be cancelled => cancelled: stop
fan_in_calling
  close, terminate -> ok+! True | 0 terminated, 0/0.2 completed | 1 C completed, 1 D completed, 1 P terminated, 1 S completed, 2 W completed => terminated: enough
  terminate, close -> True ok- | 0 terminated, 0/0.2 terminated | 1 C completed, 1 D terminated, 1 P terminated, 1 S completed, 2 W completed => terminated: enough
  close, cancel -> ok+! True | 0 open, 0/0.2 completed | 1 C completed, 1 D completed, 1 S completed, 2 W completed | 1 P pending to be cancelled => cancelled: stop
  cancel, close -> True ok- | 0 open, 0/0.2 open | 1 C completed, 1 S completed, 2 W completed | 1 D pending to be cancelled, 1 P parked to fold => cancelled: stop
child_starting
  park, terminate -> ok+ True | 0 terminated, 0/0.1 terminated | 1 C terminated, 1 P terminated => terminated: enough
  terminate, park -> True ok- | 0 terminated | 1 P terminated => terminated: enough
  park, cancel -> ok+ True | 0 open, 0/0.1 open |  | 1 C pending to be cancelled, 1 P parked => completed, H
  cancel, park -> True ok- | 0 open |  | 1 P pending to be cancelled => completed, H
child_due
  claim, terminate -> ['C'] True | 0 terminated, 0/0.1 terminated | 1 C terminated, 1 P terminated => terminated: enough
  terminate, claim -> True [] | 0 terminated, 0/0.1 terminated | 1 C terminated, 1 P terminated => terminated: enough
  claim, cancel -> ['C'] True | 0 open, 0/0.1 open |  | 1 C pending to be cancelled, 1 P parked => completed, H
  cancel, claim -> True ['C'] | 0 open, 0/0.1 open |  | 1 C running to be cancelled, 1 P parked => completed, H
  keep, terminate -> 2 True | 0 terminated, 0/0.1 terminated | 1 C terminated, 1 P terminated => terminated: enough
  terminate, keep -> True 2 | 0 terminated, 0/0.1 terminated | 1 C terminated, 1 P terminated => terminated: enough
  keep, cancel -> 2 True | 0 open, 0/0.1 open |  | 1 C pending to be cancelled, 1 P parked => completed, H
  cancel, keep -> True 2 | 0 open, 0/0.1 open |  | 1 C pending to be cancelled, 1 P parked => completed, H
child_running
  advance, terminate -> ok+ True | 0 terminated, 0/0.1 terminated | 1 C completed, 1 D terminated, 1 P terminated => terminated: enough
  terminate, advance -> True ok- | 0 terminated, 0/0.1 terminated | 1 C terminated, 1 P terminated => terminated: enough
  advance, cancel -> ok+ True | 0 open, 0/0.1 open | 1 C completed | 1 D pending to be cancelled, 1 P parked => completed, H
  cancel, advance -> True ok- | 0 open, 0/0.1 open |  | 1 C pending to be cancelled, 1 P parked => completed, H
  keep, terminate -> 2 True | 0 terminated, 0/0.1 terminated | 1 C terminated, 1 P terminated => terminated: enough
  terminate, keep -> True 2 | 0 terminated, 0/0.1 terminated | 1 C terminated, 1 P terminated => terminated: enough
  keep, cancel -> 2 True | 0 open, 0/0.1 open |  | 1 C pending to be cancelled, 1 P parked => completed, H
  cancel, keep -> True 2 | 0 open, 0/0.1 open |  | 1 C pending to be cancelled, 1 P parked => completed, H
  sweep, terminate -> ['deadline'] True | 0 terminated, 0/0.1 terminated | 1 C terminated, 1 P terminated => terminated: enough
  terminate, sweep -> True [] | 0 terminated, 0/0.1 terminated | 1 C terminated, 1 P terminated => terminated: enough
  sweep, cancel -> ['deadline'] True | 0 open, 0/0.1 open |  | 1 C pending to be cancelled, 1 P parked => completed, H
  cancel, sweep -> True [] | 0 open, 0/0.1 open |  | 1 C pending to be cancelled, 1 P parked => completed, H
  terminate, cancel -> True False | 0 terminated, 0/0.1 terminated | 1 C terminated, 1 P terminated => terminated: enough
  cancel, terminate -> True True | 0 terminated, 0/0.1 terminated | 1 C terminated, 1 P terminated => terminated: enough
  cancel, cancel too -> True True | 0 open, 0/0.1 open |  | 1 C pending to be cancelled, 1 P parked => completed, H
  cancel too, cancel -> True True | 0 open, 0/0.1 open |  | 1 C pending to be cancelled, 1 P parked => completed, H
  terminate, terminate too -> True False | 0 terminated, 0/0.1 terminated | 1 C terminated, 1 P terminated => terminated: enough
  terminate too, terminate -> True False | 0 terminated, 0/0.1 terminated | 1 C terminated, 1 P terminated => terminated: at last
  expire, cancel -> t False | 0 terminated, 0/0.1 terminated | 1 C terminated, 1 P terminated => terminated: expired: open for more than 00:00:01
  cancel, expire -> True t | 0 terminated, 0/0.1 terminated | 1 C terminated, 1 P terminated => terminated: expired: open for more than 00:00:01
  delete, cancel -> running True | 0 open, 0/0.1 open |  | 1 C pending to be cancelled, 1 P parked => completed, H
  cancel, delete -> True running | 0 open, 0/0.1 open |  | 1 C pending to be cancelled, 1 P parked => completed, H
child_ending
  close, terminate -> ok+! True | 0 terminated, 0/0.1 completed | 1 C completed, 1 D completed, 1 P terminated => terminated: enough
  terminate, close -> True ok- | 0 terminated, 0/0.1 terminated | 1 C completed, 1 D terminated, 1 P terminated => terminated: enough
  close, cancel -> ok+! True | 0 open, 0/0.1 completed | 1 C completed, 1 D completed | 1 P pending to be cancelled => completed, H
  cancel, close -> True ok- | 0 open, 0/0.1 open | 1 C completed | 1 D pending to be cancelled, 1 P parked => completed, H
child_failing
  close, terminate -> ok+! True | 0 terminated, 0/0.1 failed | 1 F failed, 1 P terminated => terminated: enough
  terminate, close -> True ok- | 0 terminated, 0/0.1 terminated | 1 F terminated, 1 P terminated => terminated: enough
  close, cancel -> ok+! True | 0 open, 0/0.1 failed | 1 F failed | 1 P pending to be cancelled => completed, H
  cancel, close -> True ok- | 0 open, 0/0.1 open |  | 1 F pending to be cancelled, 1 P parked => completed, H
child_interrupted
  resume, terminate -> True True | 0 terminated, 0/0.1 terminated | 1 I terminated, 1 P terminated => terminated: enough
  terminate, resume -> True False | 0 terminated, 0/0.1 terminated | 1 I terminated, 1 P terminated => terminated: enough
  resume, cancel -> True True | 0 open, 0/0.1 open |  | 1 I pending to be cancelled, 1 P parked => completed, H
  cancel, resume -> True False | 0 open, 0/0.1 open |  | 1 I pending to be cancelled, 1 P parked => completed, H
child_delivering
  close, terminate -> ok+! True | 0 terminated, 0/0.1 cancelled | 1 C cancelled, 1 P terminated => terminated: enough
  terminate, close -> True ok- | 0 terminated, 0/0.1 terminated | 1 C terminated, 1 P terminated => terminated: enough
  close, cancel -> ok+! True | 0 open, 0/0.1 cancelled | 1 C cancelled | 1 P pending to be cancelled => completed, H
  cancel, close -> True ok- | 0 open, 0/0.1 open |  | 1 C pending to be cancelled, 1 P parked => completed, H
child_handling
  close, terminate -> ok+! True | 0 terminated, 0/0.1 completed | 1 C completed, 1 HC completed, 1 P terminated => terminated, HC: enough
  terminate, close -> True ok- | 0 terminated, 0/0.1 terminated | 1 C completed, 1 HC terminated, 1 P terminated => terminated: enough
  close, cancel -> ok+! True | 0 open, 0/0.1 completed | 1 C completed, 1 HC completed | 1 P pending to be cancelled => completed, H, HC
  cancel, close -> True ok- | 0 open, 0/0.1 open | 1 C completed | 1 HC pending to be cancelled, 1 P parked => completed, H
child_ended
  claim, terminate -> ['P'] True | 0 terminated, 0/0.1 completed | 1 C completed, 1 D completed, 1 P terminated => terminated: enough
  terminate, claim -> True [] | 0 terminated, 0/0.1 completed | 1 C completed, 1 D completed, 1 P terminated => terminated: enough
  claim, cancel -> ['P'] True | 0 open, 0/0.1 completed | 1 C completed, 1 D completed | 1 P pending to be cancelled => completed, H
  cancel, claim -> True ['P'] | 0 open, 0/0.1 completed | 1 C completed, 1 D completed | 1 P running to be cancelled => completed, H
  keep, terminate -> 2 True | 0 terminated, 0/0.1 completed | 1 C completed, 1 D completed, 1 P terminated => terminated: enough
  terminate, keep -> True 2 | 0 terminated, 0/0.1 completed | 1 C completed, 1 D completed, 1 P terminated => terminated: enough
  keep, cancel -> 2 True | 0 open, 0/0.1 completed | 1 C completed, 1 D completed | 1 P pending to be cancelled => completed, H
  cancel, keep -> True 2 | 0 open, 0/0.1 completed | 1 C completed, 1 D completed | 1 P pending to be cancelled => completed, H
child_read
  advance, terminate -> ok+ True | 0 terminated, 0/0.1 completed | 1 B terminated, 1 C completed, 1 D completed, 1 P completed => terminated: enough
  terminate, advance -> True ok- | 0 terminated, 0/0.1 completed | 1 C completed, 1 D completed, 1 P terminated => terminated: enough
  advance, cancel -> ok+ True | 0 open, 0/0.1 completed | 1 C completed, 1 D completed, 1 P completed | 1 B pending to be cancelled => cancelled: stop
  cancel, advance -> True ok- | 0 open, 0/0.1 completed | 1 C completed, 1 D completed | 1 P pending to be cancelled => completed, H
child_cancelled_before
  advance, terminate -> ok+ True | 0 terminated, 0/0.1 cancelled | 1 C cancelled, 1 H terminated, 1 P completed => terminated: enough
  terminate, advance -> True ok- | 0 terminated, 0/0.1 cancelled | 1 C cancelled, 1 P terminated => terminated: enough
  advance, cancel -> ok+ True | 0 open, 0/0.1 cancelled | 1 C cancelled, 1 P completed | 1 H pending to be cancelled => cancelled: stop
  cancel, advance -> True ok- | 0 open, 0/0.1 cancelled | 1 C cancelled | 1 P pending to be cancelled => completed, H
child_discarded
  retry, terminate -> ok+ True | 0 terminated, 0/0.1 completed | 1 C completed, 1 D completed, 1 Y terminated => terminated: enough
  terminate, retry -> True ok- | 0 terminated, 0/0.1 completed | 1 C completed, 1 D completed, 1 Y terminated => terminated: enough
  retry, cancel -> ok+ True | 0 open, 0/0.1 completed | 1 C completed, 1 D completed | 1 Y pending to be cancelled => cancelled: stop
  cancel, retry -> True ok- | 0 open, 0/0.1 completed | 1 C completed, 1 D completed | 1 Y pending to be cancelled => cancelled: stop
child_called_again
  park, terminate -> ok+ True | 0 terminated, 0/0.1 terminated | 1 C completed, 1 C terminated, 1 D completed, 1 Y terminated => terminated: enough
  terminate, park -> True ok- | 0 terminated, 0/0.1 completed | 1 C completed, 1 D completed, 1 Y terminated => terminated: enough
  park, cancel -> ok+ True | 0 open, 0/0.1 open | 1 C completed, 1 D completed | 1 C pending to be cancelled, 1 Y parked => cancelled: stop
  cancel, park -> True ok- | 0 open, 0/0.1 completed | 1 C completed, 1 D completed | 1 Y pending to be cancelled => cancelled: stop
grandchild_starting
  park, terminate -> ok+ True | 0 terminated, 0/0.1 terminated, 0/0.1/0.1 terminated | 1 C terminated, 1 P terminated, 1 Q terminated => terminated: enough
  terminate, park -> True ok- | 0 terminated, 0/0.1 terminated | 1 P terminated, 1 Q terminated => terminated: enough
  park, cancel -> ok+ True | 0 open, 0/0.1 open, 0/0.1/0.1 open |  | 1 C pending to be cancelled, 1 P parked, 1 Q parked => completed, H
  cancel, park -> True ok- | 0 open, 0/0.1 open |  | 1 P pending to be cancelled, 1 Q parked => completed, H
grandchild_ending
  close, terminate -> ok+! True | 0 terminated, 0/0.1 terminated, 0/0.1/0.1 completed | 1 C completed, 1 D completed, 1 P terminated, 1 Q terminated => terminated: enough
  terminate, close -> True ok- | 0 terminated, 0/0.1 terminated, 0/0.1/0.1 terminated | 1 C completed, 1 D terminated, 1 P terminated, 1 Q terminated => terminated: enough
  close, cancel -> ok+! True | 0 open, 0/0.1 open, 0/0.1/0.1 completed | 1 C completed, 1 D completed | 1 P pending to be cancelled, 1 Q parked => completed, H
  cancel, close -> True ok- | 0 open, 0/0.1 open, 0/0.1/0.1 open | 1 C completed | 1 D pending to be cancelled, 1 P parked, 1 Q parked => completed, H
grandchild_interrupted
  resume, terminate -> True True | 0 terminated, 0/0.1 terminated, 0/0.1/0.1 terminated | 1 I terminated, 1 P terminated, 1 Q terminated => terminated: enough
  terminate, resume -> True False | 0 terminated, 0/0.1 terminated, 0/0.1/0.1 terminated | 1 I terminated, 1 P terminated, 1 Q terminated => terminated: enough
  resume, cancel -> True True | 0 open, 0/0.1 open, 0/0.1/0.1 open |  | 1 I pending to be cancelled, 1 P parked, 1 Q parked => completed, H
  cancel, resume -> True False | 0 open, 0/0.1 open, 0/0.1/0.1 open |  | 1 I pending to be cancelled, 1 P parked, 1 Q parked => completed, H
  delete, resume -> terminated False | 0 terminated, 0/0.1 terminated, 0/0.1/0.1 terminated | 1 I terminated, 1 P terminated, 1 Q terminated => terminated: gone
  resume, delete -> True running | 0 open, 0/0.1 open, 0/0.1/0.1 open |  | 1 I pending, 1 P parked, 1 Q parked => completed
  delete, cancel -> terminated False | 0 terminated, 0/0.1 terminated, 0/0.1/0.1 terminated | 1 I terminated, 1 P terminated, 1 Q terminated => terminated: gone
  cancel, delete -> True running | 0 open, 0/0.1 open, 0/0.1/0.1 open |  | 1 I pending to be cancelled, 1 P parked, 1 Q parked => completed, H
  delete, terminate -> terminated False | 0 terminated, 0/0.1 terminated, 0/0.1/0.1 terminated | 1 I terminated, 1 P terminated, 1 Q terminated => terminated: gone
  terminate, delete -> True deleted | 0 terminated, 0/0.1 terminated, 0/0.1/0.1 terminated | 1 I terminated, 1 P terminated, 1 Q terminated => terminated: enough
  expire, resume -> t False | 0 terminated, 0/0.1 terminated, 0/0.1/0.1 terminated | 1 I terminated, 1 P terminated, 1 Q terminated => terminated: expired: open for more than 00:00:01
  resume, expire -> True t | 0 terminated, 0/0.1 terminated, 0/0.1/0.1 terminated | 1 I terminated, 1 P terminated, 1 Q terminated => terminated: expired: open for more than 00:00:01
  terminate, cancel -> True False | 0 terminated, 0/0.1 terminated, 0/0.1/0.1 terminated | 1 I terminated, 1 P terminated, 1 Q terminated => terminated: enough
  cancel, terminate -> True True | 0 terminated, 0/0.1 terminated, 0/0.1/0.1 terminated | 1 I terminated, 1 P terminated, 1 Q terminated => terminated: enough
  cancel, cancel too -> True True | 0 open, 0/0.1 open, 0/0.1/0.1 open |  | 1 I pending to be cancelled, 1 P parked, 1 Q parked => completed, H
  cancel too, cancel -> True True | 0 open, 0/0.1 open, 0/0.1/0.1 open |  | 1 I pending to be cancelled, 1 P parked, 1 Q parked => completed, H
children_of_every_kind
  close, terminate -> ok+! True | 0 terminated, 0/1.1 completed, 0/2.1 terminated, 0/4.1 completed | 2 C completed, 2 D completed, 1 I terminated, 1 J terminated, 4 P terminated, 1 S completed => terminated: enough
  terminate, close -> True ok- | 0 terminated, 0/1.1 terminated, 0/2.1 terminated, 0/4.1 completed | 2 C completed, 1 D completed, 1 D terminated, 1 I terminated, 1 J terminated, 4 P terminated, 1 S completed => terminated: enough
  close, cancel -> ok+! True | 0 open, 0/1.1 completed, 0/2.1 open, 0/4.1 completed | 2 C completed, 2 D completed, 1 S completed | 1 I pending to be cancelled, 1 J joining, 1 P parked, 3 P pending to be cancelled => cancelled: stop
  cancel, close -> True ok- | 0 open, 0/1.1 open, 0/2.1 open, 0/4.1 completed | 2 C completed, 1 D completed, 1 S completed | 1 D pending to be cancelled, 1 I pending to be cancelled, 1 J joining, 2 P parked, 2 P pending to be cancelled => cancelled: stop
  park and arrive, terminate -> ok++ True | 0 terminated, 0/1.1 terminated, 0/2.1 terminated, 0/3.1 terminated, 0/4.1 completed | 2 C completed, 1 C terminated, 1 D completed, 1 D terminated, 1 I terminated, 1 J terminated, 1 P completed, 3 P terminated, 1 S completed => terminated: enough
  terminate, park and arrive -> True ok-- | 0 terminated, 0/1.1 terminated, 0/2.1 terminated, 0/4.1 completed | 2 C completed, 1 D completed, 1 D terminated, 1 I terminated, 1 J terminated, 4 P terminated, 1 S completed => terminated: enough
  park and arrive, cancel -> ok++ True | 0 open, 0/1.1 open, 0/2.1 open, 0/3.1 open, 0/4.1 completed | 2 C completed, 1 D completed, 1 P completed, 1 S completed | 1 C pending to be cancelled, 1 D pending to be cancelled, 1 I pending to be cancelled, 1 J joining, 3 P parked => cancelled: stop
  cancel, park and arrive -> True ok-- | 0 open, 0/1.1 open, 0/2.1 open, 0/4.1 completed | 2 C completed, 1 D completed, 1 S completed | 1 D pending to be cancelled, 1 I pending to be cancelled, 1 J joining, 2 P parked, 2 P pending to be cancelled => cancelled: stop
  resume, terminate -> True True | 0 terminated, 0/1.1 terminated, 0/2.1 terminated, 0/4.1 completed | 2 C completed, 1 D completed, 1 D terminated, 1 I terminated, 1 J terminated, 4 P terminated, 1 S completed => terminated: enough
  terminate, resume -> True False | 0 terminated, 0/1.1 terminated, 0/2.1 terminated, 0/4.1 completed | 2 C completed, 1 D completed, 1 D terminated, 1 I terminated, 1 J terminated, 4 P terminated, 1 S completed => terminated: enough
  resume, cancel -> True True | 0 open, 0/1.1 open, 0/2.1 open, 0/4.1 completed | 2 C completed, 1 D completed, 1 S completed | 1 D pending to be cancelled, 1 I pending to be cancelled, 1 J joining, 2 P parked, 2 P pending to be cancelled => cancelled: stop
  cancel, resume -> True False | 0 open, 0/1.1 open, 0/2.1 open, 0/4.1 completed | 2 C completed, 1 D completed, 1 S completed | 1 D pending to be cancelled, 1 I pending to be cancelled, 1 J joining, 2 P parked, 2 P pending to be cancelled => cancelled: stop
"""
