"""The faults that Tokenpaths promises to survive: what is done to it, and what it does then."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One row of the fault table."""

    fault: str
    promised: str


ROWS: dict[int, Row] = {
    1: Row("`kill -9` of the process that writes a trace, 60 times", "every sealed run opens whole, none is half"),
    2: Row("`kill -9` at 10 random iterations of a dream of 2,048", "at most 64 iterations redone, the same bytes"),
    3: Row("Cancel; of 100 queued jobs cancel 50", "stops within 5 s, frames kept, the other 50 finish"),
    4: Row("Full disk (24 MB)", "507 and the job paused; sealed runs kept; API alive"),
    5: Row("60 corruptions of each store", "a problem in words, never a wrong number, other runs served"),
    6: Row("Checkpoint cut short or altered; `kill -9` while saving, 25 times", "refused; the one before it loads"),
    7: Row("Pickle instead of a picture, weights or data", "415 on upload; never executed"),
    8: Row("Hostile `config.json`", "the program's own classes only, no code of the model's"),
    9: Row("Two writers of one run", "the second ends within 1 s and names the first"),
    10: Row("200 idle connections, one that never reads", "`/healthz` within 50 ms"),
    11: Row("200 listeners hang up; one comes back", "none is kept after 1 s; `Last-Event-ID` resumes"),
    12: Row("Upload of 26 MB (cap 25), chunked too", "413; memory grows by less than 64 MB"),
    13: Row("Pictures of 20,000², 9,500² and 8,000² pixels", "413 before they are decoded, in a small process"),
    14: Row("Bad UTF-8, surrogates, NUL, right-to-left, 10 MB, `<script>`", "422, or the same text back; inert"),
    15: Row("NaN in weights or pixels", "an error that names the tensor; no rows written"),
    16: Row("10,000 GETs at once", "only 200, 429 or 503; p99 within 5 s"),
    17: Row("10,000 strings in every filter", "the same rows as a loop over all, or 422"),
    18: Row("Names that lead out of the folder", "404 or 422; nothing outside the data folder"),
    19: Row("POST, PUT and DELETE from another web site", "403, and nothing changes"),
    20: Row("`Host: evil.example` over HTTP and WebSocket", "400 or 403"),
    21: Row("Reachable address without a token; every route without it", "refuses to start; 401 everywhere"),
    22: Row("Addresses where a name, a text or a picture belongs", "nothing is fetched"),
}
