-- Question: is anything in this shard as it must never be? No row is the right answer, at any moment, also under load.
-- One row per fault: the rule that is broken, the flow and branch where, and what is there. Reads everything open, and the
-- 20,000 flows that ended last. Needs no parameter and changes nothing. The rules are in functions/faults_v1.sql.

select
  f.rule
  , f.flow_id
  , f.branch
  , f.detail
from dwarf.faults_v1() as f;
