"""The faults that Tokenpaths promises to survive: what is done to it, and what it does then."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One row of the fault table."""

    fault: str
    promised: str
    before: str = "–"
    """what the same did before it was defended against, as seen on that state"""


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
    23: Row(
        "Run files with views that act at a date or by a setting, macros, other schemas, tables that disagree",
        "never opened: base tables copied and checked, or refused in words",
        before="passed as known; after the date, a function that the view calls ran in the API",
    ),
    24: Row(
        "Questions that never end and cannot be interrupted",
        "503 and a free slot after 2 × `query_seconds`",
        before="both slots taken for ever, other runs 503, also after both runs were deleted",
    ),
    25: Row(
        "A job whose library panics, exits or raises what is no `Exception`",
        "it fails in words; the next runs",
        before="the job `running` for ever after a panic, none behind it ran; seven lives and more",
    ),
    26: Row(
        "A foreign site frames the page",
        "the frame stays empty; its request is refused",
        before="200 to the request of a frame",
    ),
    27: Row(
        "1,100 connections that wait, at 1,024 open files",
        "`/healthz` and runs are answered; a short log",
        before="no answer of `/healthz` within 10 s, four times; 13 MB of log, 26,000 lines of EMFILE",
    ),
    28: Row(
        "A server process that dies at every start, or hangs",
        "restarted, or paused in words; the others go on",
        before="`up` ended after the sixth death in 2 s; a stopped process was not noticed for 45 s",
    ),
    29: Row(
        "Pictures, links, HTML, directives in labels, names and texts",
        "texts; nothing loads, links or runs",
        before="addresses in texts of the API became links (*Paths*)",
    ),
    30: Row(
        "Labels as floats, lists, objects, of 1 MB, that look alike; JPEGs with destroyed scans; half pictures",
        "read or left out, each kind counted and said; groups named, one click merges; refused or counted by name",
        before="13 of 20 labelled, no note; 57 to 60 of 80 destroyed JPEGs traced without a word",
    ),
    31: Row(
        "Parquet, .npz, checkpoints and pictures of some kB that unfold to GBs",
        "a sentence; a reader of at most 2.3 GB",
        before="Parquet of 0.5 kB: 3 GB, then 4 GB more asked for, which a limit of ours refused",
    ),
    32: Row(
        "An endless request head to the page, before the token",
        "refused after 64 KiB; memory stays",
        before="64 MB of head taken, and it was still listening",
    ),
    33: Row(
        "Cookie and WebSocket from another port of the host",
        "403; the cookie opens no other page",
        before="WebSocket 101 from other ports; the cookie opened another page",
    ),
    34: Row(
        "`jobs.sqlite` deleted, replaced or moved, its data folder moved or unmounted, while servers run",
        "one list for all, no log lost; 503 in words, nothing made anew; all goes on when it is back",
        before="202 for jobs that nobody ran; the moved folder was made anew",
    ),
    35: Row(
        "2,000 run files, listed after a restart",
        "within seconds, from an index of their cards",
        before="no answer within 150 s",
    ),
    36: Row(
        "45 submissions while another process holds the list of jobs",
        "503 with Retry-After; others answered",
        before="a request had no answer after 60 s",
    ),
    37: Row(
        "A flood of refused requests; a trouble that repeats",
        "below 20 MB of log a process; what was left out is counted",
        before="each refusal a line (246 bytes), without a limit while it runs",
    ),
    38: Row(
        "Frames and other embedded reads by other web sites",
        "403; links from elsewhere still lead here",
        before="200 to a frame of another site",
    ),
    39: Row(
        "The worker's `/healthz` without its secret, with another `Host`",
        "401, 400; no name of a model",
        before="200 without secret, with any `Host`",
    ),
    40: Row(
        "A label of 1 MB, cells that begin with `=`, 16-bit grey with a transparent tone",
        "a problem instead of a large answer; no formula; the picture as it is shown elsewhere",
        before="answers of 1 to 3 MB for a label of 1 MB; `+` at the start of cells; black for white",
    ),
}
