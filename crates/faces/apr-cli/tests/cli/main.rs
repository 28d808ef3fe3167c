//! The `apr` command from outside: what it prints, writes, refuses and leaves behind.
//!
//! What takes a shell, a terminal of tmux, signals, limits, modes, links or devices is for Unix
//! alone.

#![cfg_attr(not(unix), allow(dead_code, unused_imports, reason = "helpers of tests for Unix"))]

mod adapters;
#[cfg(unix)]
mod advice;
mod anomalies;
mod bad_input;
mod canary;
mod changes;
mod checksums;
#[cfg(unix)]
mod ci;
mod cluster;
mod codes;
mod configurations;
mod constants;
mod container;
mod coreml;
mod diff;
mod digests;
mod distill;
#[cfg(unix)]
mod documentation;
mod edit;
mod edit_formats;
mod encryption;
mod estimates;
mod falsification;
mod families;
mod family_round_trip;
mod filterbanks;
mod front_ends;
mod gates;
mod ggml;
mod gguf;
mod gguf_edit;
mod golden;
mod graph;
mod graphs;
mod hub;
mod hub_cache;
mod hub_faults;
mod hub_folder;
mod hub_servers;
mod imatrix;
#[cfg(unix)]
mod interruption;
mod jobs_in_parts;
mod keras;
mod left_out;
mod limits;
mod llama_cpp;
mod lora;
mod lora_merge;
mod lowered;
mod lowrank;
mod memory;
mod merge;
mod moe;
mod onnx;
mod onnx_back;
mod onnx_export;
mod onnx_families;
mod onnx_looks;
mod onnx_rewritten;
#[cfg(unix)]
mod outputs;
mod page;
mod parts;
mod points;
mod prune;
mod pytorch;
mod qa_container;
mod qa_conversion;
mod qa_family_import;
mod qa_family_physics;
mod qa_family_shapes;
mod qa_family_tooling;
mod qa_physics;
mod qa_structure;
mod qa_tooling;
mod quality;
mod quantize;
mod reference;
mod round_trip;
mod run;
mod run_beams;
mod run_chats;
mod run_engine;
mod run_families;
mod run_grammars;
mod run_images;
mod run_media;
mod run_newer;
mod run_options;
mod run_prompt_cache;
mod run_rerankers;
mod run_retrievers;
mod run_sentences;
mod run_spans;
mod run_speed;
mod run_texts;
mod sarif;
mod scan;
mod schemas;
#[cfg(unix)]
mod screens;
mod seals;
mod shards;
mod stated;
mod support;
mod tensorflow;
mod tensors;
mod terminal;
mod tflite;
mod torchscript;
mod trace;
mod trace_diff;
mod training_checkpoints;
mod unquantized;
mod unused_tensors;
mod upgrade;
mod watermark;
