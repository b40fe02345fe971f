-- The tables of a history (its version: `database.VERSION`). Other programs may read `sessions`, `events` and `audio`.

-- The events of sessions, as JSON. The first of a session is its `ready`, the last its `end`; an `error` with the code
-- `history_lost` stands for those that were deleted for their age or the file's size.
CREATE TABLE IF NOT EXISTS events (
    id INTEGER PRIMARY KEY,
    own INTEGER NOT NULL,  -- whether the session is of the daemon's own input, not a client's stream
    source TEXT NOT NULL,  -- of the audio, in words
    at REAL NOT NULL,      -- when it came, in seconds since 1970, UTC
    event TEXT NOT NULL,
    type TEXT NOT NULL AS (json_extract(event, '$.type')) STORED,
    session TEXT NOT NULL AS (json_extract(event, '$.session')) STORED,
    seq INTEGER NOT NULL AS (json_extract(event, '$.seq')) STORED,
    about INTEGER AS (json_extract(event, '$.of')) STORED,  -- `seq` of the final that it corrects
    start_s REAL AS (json_extract(event, '$.start')) STORED,
    end_s REAL AS (json_extract(event, '$.end')) STORED,
    UNIQUE (session, seq)
);
CREATE INDEX IF NOT EXISTS kinds ON events (type, session, about);
CREATE INDEX IF NOT EXISTS ages ON events (at);

CREATE VIEW IF NOT EXISTS sessions AS
    SELECT id AS number, session AS id, own, source, event AS ready, at AS started,
        (SELECT at FROM events WHERE type = 'end' AND session = first.session) AS ended,
        (SELECT count(*) FROM events WHERE session = first.session) - 1
            - EXISTS (SELECT 1 FROM events WHERE type = 'end' AND session = first.session) AS n_events,
        coalesce((SELECT end_s FROM events WHERE session = first.session AND end_s IS NOT NULL
            ORDER BY seq DESC LIMIT 1), 0.0) AS end_s
    FROM events AS first WHERE type = 'ready';

-- The text of each final as corrected since, by the `id` of its event. Vowels and tones that follow their letter (M),
-- such as Thai's, are part of a word. Characters of scripts without spaces are words of their own (`database.indexed`).
CREATE VIRTUAL TABLE texts USING fts5
    (text, columnsize = 0, tokenize = "unicode61 remove_diacritics 2 categories 'L* N* Co M*'");
CREATE TRIGGER IF NOT EXISTS forget AFTER DELETE ON events BEGIN DELETE FROM texts WHERE rowid = old.id; END;

-- Pieces of Opus; `start` and `end` are positions in the session's audio, in samples at 16 kHz.
CREATE TABLE IF NOT EXISTS audio (
    id INTEGER PRIMARY KEY,
    session TEXT NOT NULL,
    at REAL NOT NULL,
    start INTEGER NOT NULL,
    end INTEGER NOT NULL,
    opus BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS audio_places ON audio (session, start, end);
CREATE INDEX IF NOT EXISTS audio_ages ON audio (at);
CREATE TRIGGER IF NOT EXISTS forget_audio AFTER DELETE ON events WHEN old.type = 'ready'
    BEGIN DELETE FROM audio WHERE session = old.session; END;
