import time
from dwarf import Query
from tests.engine.conftest import MakeStage, stage
from tests.engine.test_purge import GRAPHS, TASKS, forged

PLAN = """explain (analyze, buffers off, timing off, summary off) select f.flow_id as id, null::timestamptz as parked_at, f.status, f.thread_id, f.task, f.ended_at as moved_at, f.workflow
        , f.fairness_key, f.priority, f.tenant, f.error, f.reason, f.graph_id
        from dwarf.flows f
        where f.flow_id > 0 and f.root_id = f.flow_id
        and not exists (select from dwarf.doomed d where d.flow_id = f.flow_id)
        order by f.flow_id limit 20000"""


def test_scale(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    for back in range(1, 6):
        on.player.one("select dwarf.ensure_partitions(0, dwarf.now() - %s * interval '1 day')", back)
    forged(on, 20_000)
    on.player.connection.execute("analyze")
    on.player.connection.execute("set enable_seqscan=off; set enable_hashjoin=off; set enable_mergejoin=off; set jit=off")
    for row in on.player.all(PLAN):
        print(row[0])
    for query in (Query(search="nothing"), Query(limit=1), Query(), Query(), Query(limit=1)):
        t = time.time()
        n = on.do(on.client.purge(query))
        print(query, n, time.time() - t, flush=True)
    while True:
        t = time.time()
        n = on.do(on.client.purge(Query()))
        print(n, time.time() - t, flush=True)
        if not n:
            break
    print("last", time.time() - t)
    for row in on.player.all(PLAN):
        print(row[0])
