-- What a new history holds. The texts of finals are indexed apart from their JSON.
CREATE TABLE sessions (
    n INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    own INTEGER NOT NULL,
    source TEXT NOT NULL,
    model TEXT NOT NULL,
    language TEXT NOT NULL,
    ready TEXT NOT NULL,
    started REAL NOT NULL,
    ended REAL,
    dropped_seq INTEGER NOT NULL DEFAULT 0,
    dropped_s REAL NOT NULL DEFAULT 0
);
CREATE TABLE events (
    id INTEGER PRIMARY KEY,
    session INTEGER NOT NULL REFERENCES sessions (n),
    seq INTEGER NOT NULL,
    at REAL NOT NULL,
    start_s REAL,
    end_s REAL,
    event TEXT NOT NULL,
    UNIQUE (session, seq)
);
CREATE INDEX events_at ON events (at);
CREATE VIRTUAL TABLE texts USING fts5 (text, tokenize = 'unicode61 remove_diacritics 2');
