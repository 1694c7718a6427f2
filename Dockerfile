FROM python:3.11-slim AS program
WORKDIR /app
# CPU build by default; for a GPU: TORCH_INDEX=https://download.pytorch.org/whl/cu130 TORCH_BUILD=+cu130 (docs/deployment.md)
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ARG TORCH_BUILD=+cpu
COPY constraints.txt pyproject.toml setup.py README.md LICENSE NOTICE ./
RUN pip install --no-cache-dir --extra-index-url "$TORCH_INDEX" \
    "torch==$(sed -n 's/^torch==//p' constraints.txt)$TORCH_BUILD"
COPY tokenpaths tokenpaths
COPY engine engine
COPY backend backend
COPY frontend frontend
COPY data data
RUN pip install --no-cache-dir -c constraints.txt -e . && useradd --create-home tokenpaths \
    && mkdir /data && chown tokenpaths /data
USER tokenpaths
# Threads of a product that wait for each other sleep: containers share cores (docs/decisions.md).
ENV OMP_WAIT_POLICY=passive OPENBLAS_THREAD_TIMEOUT=4
# Read-only but for the volume and /tmp: caches of libraries go there.
ENV TOKENPATHS_DATA_DIR=/data HOME=/tmp PYTHONDONTWRITEBYTECODE=1
VOLUME /data

# The documentation, which the page shows at /documentation/; what builds it stays behind.
FROM program AS documentation
USER root
COPY mkdocs.yml ./
COPY packaging packaging
COPY docs docs
RUN pip install --no-cache-dir -c constraints.txt -e ".[docs]" && mkdir -p build/tree/tokenpaths \
    && ln -s /app/engine /app/backend /app/frontend /app/tokenpaths/* build/tree/tokenpaths/ \
    && NO_MKDOCS_2_WARNING=1 mkdocs build --strict --quiet

FROM program
COPY --from=documentation /app/site site
