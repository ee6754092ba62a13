# The image of one replica. A user's own image starts from it and adds the module with the tasks:
#
#   FROM dwarf
#   COPY shop.py ./
#
# There is no HEALTHCHECK: an orchestrator asks the replica's own probes.

FROM python:3.12-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY dwarf dwarf
COPY procs procs
COPY sql sql
RUN pip install --no-cache-dir --prefix /install .

FROM python:3.12-slim
COPY --from=build /install /usr/local
RUN useradd --uid 10001 --no-create-home --home-dir /app dwarf
ENV PYTHONUNBUFFERED=1
WORKDIR /app
USER 10001
STOPSIGNAL SIGTERM
ENTRYPOINT ["dwarf"]
