/** An event of the protocol, version 1: docs/protocol.md, *Events*. Ignore types and fields that you do not know. */
export interface Word {
  word: string;
  /** Seconds of the audio. */
  start: number;
  end: number;
  probability: number;
  stable: boolean;
  /** Who says it, where the daemon knows. */
  speaker?: string;
}
interface Stamped {
  seq: number;
  session: string;
}
export type CaptionEvent = Stamped &
  (
    | { type: "ready"; model: string; device: Record<string, string>; sample_rate: number; language: string; protocol: number; capabilities: string[] }
    | { type: "speech"; state: "start" | "end"; time: number }
    | { type: "turn"; time: number; probability: number; finished: boolean }
    | { type: "partial"; segment: number; start: number; end: number; text: string; stable: number; words: Word[] }
    | { type: "final"; segment: number; start: number; end: number; text: string; words: Word[]; language: string; no_speech_prob: number; avg_logprob: number }
    | { type: "revision"; of: number; by: string; text: string; words: Word[]; edits: { start: number; end: number; text: string }[] }
    | { type: "speakers"; same: [string, string] }
    | { type: "translation"; of: number; text: string; language: string }
    | { type: "gap"; start: number; end: number; reason: string }
    | { type: "flushed"; time: number }
    | { type: "error"; code: string; message: string; fatal: boolean; heard_samples?: number }
    | { type: "end" }
  );

/** What becomes of the connection. */
export interface State {
  state: "connecting" | "open" | "lost" | "refused" | "ended" | "failed";
  /** Connections in a row that failed before this one. */
  attempt?: number;
  /** Of the daemon's HTTP answer; 0: there was none. */
  status?: number;
  /** Of the daemon's error, or the WebSocket's close code; "peer": the daemon sent no event. */
  code?: string | number;
  message?: string;
}

export interface Connecting {
  /** The daemon's address, such as "http://localhost:8765/"; in a browser that of the page unless given. */
  url?: string | URL;
  token?: string | (() => string);
  onEvent: (event: CaptionEvent) => void;
  onState?: (state: State) => void;
}

/** Follow the captions of the daemon's own input, or of a room. `after`: 0 for all from the start; else only what comes. */
export function listen(options: Connecting & { room?: string; after?: number }): {
  /** Try at once to connect, where there is no connection. */
  retry(): void;
  close(): void;
};

/** What a session may choose; null: what the daemon is set to. */
export interface Options {
  language?: string | null;
  task?: "transcribe" | "translate" | "both" | null;
  beam_size?: number | null;
  initial_prompt?: string | null;
  hotwords?: string[] | null;
  vad_threshold?: number | null;
  min_silence_s?: number | null;
  turns?: boolean | null;
  turn_threshold?: number | null;
  turn_silence_s?: number | null;
  pace_s?: number | null;
  languages?: string[] | null;
  words?: boolean | null;
}

/** Send audio and read what is said in it. Times are those of all the audio. */
export function stream(
  options: Connecting & {
    start?: Options & { format?: "s16le" | "f32le"; sample_rate?: number; channels?: number; keep?: boolean; room?: string };
  },
): {
  /** Whole samples; floats are rounded to 16 bits unless `format` is f32le. */
  send(audio: ArrayBuffer | ArrayBufferView): void;
  flush(): void;
  pause(): void;
  resume(): void;
  clear(): void;
  set(options: Options): void;
  /** No more audio comes; events follow, `end` last. */
  finish(): void;
  /** Leave at once: what is not final is given up. */
  close(): void;
  /** Bytes that are not sent yet: give no more audio where they become many. */
  readonly waiting: number;
};

/** Ask the daemon over HTTP, with its token. */
export function ask(address: string | URL, token?: string, method?: string): Promise<Response>;
