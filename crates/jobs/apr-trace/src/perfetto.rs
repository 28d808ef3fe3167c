//! Perfetto's trace format: slices for layers, blocks and operators, and a counter of memory.
//!
//! ```text
//! Trace         packet 1
//! TracePacket   timestamp 8 (ns), trusted_packet_sequence_id 10, track_event 11,
//!               sequence_flags 13, track_descriptor 60
//! descriptor    uuid 1, name 2, process 3, thread 4, parent_uuid 5, counter 8
//! TrackEvent    debug_annotations 4, type 9 (begin 1, end 2, counter 4), track_uuid 11,
//!               categories 22, name 23, counter_value 30
//! ```
//!
//! Source: `protos/perfetto/trace/trace_packet.proto` and `track_event/*.proto` of Perfetto.

use crate::level::Level;
use crate::trace::{PassTrace, Trace};
use crate::tracer::OperatorTrace;

const PROCESS: u64 = 1;
const MEMORY: u64 = 2;
const FIRST_THREAD: u64 = 16;

const SLICE_BEGIN: u64 = 1;
const SLICE_END: u64 = 2;
const COUNTER: u64 = 4;

/// Returns a trace as a file for Perfetto. Without a clock, each operator takes a microsecond.
#[must_use]
pub fn perfetto(trace: &Trace) -> Vec<u8> {
    let mut file = File::default();
    file.describe_process(&trace.path);
    let mut begun = 0.0;
    for (number, pass) in trace.passes.iter().enumerate() {
        begun = file.pass(pass, FIRST_THREAD + number as u64, begun);
    }
    file.bytes
}

#[derive(Default)]
struct File {
    bytes: Vec<u8>,
    has_begun: bool,
}

/// Start and end of an operator, in seconds.
struct Span {
    start: f64,
    end: f64,
}

impl File {
    /// Writes a part's slices from a time on; when the last one ends.
    fn pass(&mut self, pass: &PassTrace, track: u64, begun: f64) -> f64 {
        self.describe_thread(track, &pass.part);
        let mut now = begun;
        let mut open: Vec<&str> = Vec::new();
        for operator in &pass.operators {
            let span = Span::of(operator, now, begun);
            let around = around(&operator.path);

            // A block ends where the next operator belongs to another one.
            let is_same = |(held, (_, name)): &(&&str, &(&str, &str))| *held == name;
            let same = open.iter().zip(&around).take_while(is_same).count();
            while open.len() > same {
                open.pop();
                self.slice_end(track, now);
            }
            for (level, name) in &around[same..] {
                self.slice_begin(track, span.start, name, level, None);
                open.push(name);
            }

            self.slice_begin(track, span.start, &operator.path, "operator", Some(operator));
            self.slice_end(track, span.end);
            self.counter(span.end, operator.live_bytes);
            now = span.end;
        }
        for _ in open {
            self.slice_end(track, now);
        }
        now
    }

    fn describe_process(&mut self, name: &str) {
        let mut process = Message::default();
        process.number(1, PROCESS);
        process.text(6, name);
        let mut descriptor = Message::default();
        descriptor.number(1, PROCESS);
        descriptor.text(2, name);
        descriptor.message(3, &process);
        self.descriptor(&descriptor);

        // Unit 3 is bytes.
        let mut counter = Message::default();
        counter.number(3, 3);
        let mut descriptor = Message::default();
        descriptor.number(1, MEMORY);
        descriptor.text(2, "memory of values");
        descriptor.number(5, PROCESS);
        descriptor.message(8, &counter);
        self.descriptor(&descriptor);
    }

    fn describe_thread(&mut self, track: u64, name: &str) {
        let mut thread = Message::default();
        thread.number(1, PROCESS);
        thread.number(2, track);
        thread.text(5, name);
        let mut descriptor = Message::default();
        descriptor.number(1, track);
        descriptor.text(2, name);
        descriptor.message(4, &thread);
        descriptor.number(5, PROCESS);
        self.descriptor(&descriptor);
    }

    fn descriptor(&mut self, descriptor: &Message) {
        let mut packet = Message::default();
        packet.message(60, descriptor);
        self.packet(packet);
    }

    fn slice_begin(
        &mut self,
        track: u64,
        seconds: f64,
        name: &str,
        category: &str,
        operator: Option<&OperatorTrace>,
    ) {
        let mut event = Message::default();
        event.number(9, SLICE_BEGIN);
        event.number(11, track);
        event.text(22, category);
        event.text(23, name);
        if let Some(operator) = operator {
            event.message(4, &annotation("operator", |note| note.text(6, &operator.op)));
            event.message(4, &annotation("made_bytes", |note| note.number(3, operator.made_bytes)));
        }
        self.event(seconds, &event);
    }

    fn slice_end(&mut self, track: u64, seconds: f64) {
        let mut event = Message::default();
        event.number(9, SLICE_END);
        event.number(11, track);
        self.event(seconds, &event);
    }

    fn counter(&mut self, seconds: f64, bytes: u64) {
        let mut event = Message::default();
        event.number(9, COUNTER);
        event.number(11, MEMORY);
        event.number(30, bytes);
        self.event(seconds, &event);
    }

    fn event(&mut self, seconds: f64, event: &Message) {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "seconds since the beginning"
        )]
        let nanos = (seconds * 1e9).round() as u64;
        let mut packet = Message::default();
        packet.number(8, nanos);
        packet.message(11, event);
        self.packet(packet);
    }

    /// Writes a packet. All packets belong to one sequence; the first one marks its beginning.
    fn packet(&mut self, mut packet: Message) {
        packet.number(10, 1);
        if !std::mem::replace(&mut self.has_begun, true) {
            packet.number(13, 1);
        }
        let mut trace = Message { bytes: std::mem::take(&mut self.bytes) };
        trace.message(1, &packet);
        self.bytes = trace.bytes;
    }
}

/// Returns the layer and the block of an operator, unless they are the operator itself.
fn around(path: &str) -> Vec<(&'static str, &str)> {
    let mut found =
        vec![("layer", Level::Layer.step_of(path)), ("block", Level::Block.step_of(path))];
    found.dedup_by_key(|(_, name)| *name);
    found.retain(|(_, name)| *name != path);
    found
}

fn annotation(name: &str, value: impl FnOnce(&mut Message)) -> Message {
    let mut note = Message::default();
    note.text(10, name);
    value(&mut note);
    note
}

impl Span {
    /// Returns the span of an operator that begins after `now`, on a clock that started at `begun`.
    fn of(operator: &OperatorTrace, now: f64, begun: f64) -> Self {
        match (operator.start, operator.seconds) {
            (Some(start), Some(seconds)) => {
                let start = (begun + start).max(now);
                Self { start, end: start + seconds }
            }
            _ => Self { start: now, end: now + 1e-6 },
        }
    }
}

/// A message of protocol buffers.
#[derive(Default)]
struct Message {
    bytes: Vec<u8>,
}

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push((value & 0x7f) as u8);
    }

    fn number(&mut self, field: u64, value: u64) {
        self.varint(field << 3);
        self.varint(value);
    }

    fn text(&mut self, field: u64, value: &str) {
        self.block(field, value.as_bytes());
    }

    fn message(&mut self, field: u64, value: &Self) {
        self.block(field, &value.bytes);
    }

    fn block(&mut self, field: u64, bytes: &[u8]) {
        self.varint(field << 3 | 2);
        self.varint(bytes.len() as u64);
        self.bytes.extend_from_slice(bytes);
    }
}
