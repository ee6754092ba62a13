-- purpose: the views for operators, and what every table, column, view and function is
-- lock: none that matters
-- transactional: yes
-- breaking: no

-- include functions/faults_v1.sql

-- include views.sql

-- include comments.sql
