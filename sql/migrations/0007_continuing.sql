-- purpose: continues: flows that go on where completed ones have ended
-- lock: none, all objects are new
-- transactional: yes
-- breaking: no

-- include functions/continue_v1.sql
