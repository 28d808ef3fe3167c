//! What a test hub takes: repositories, large files for its store, commits.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::answer::{absent, decoded, json_answer};
use super::content::{Content, commit_id, is_large, sha256};
use super::http::{Answer, Asked};
use super::{Repository, State};
use crate::base64::from_base64;

/// What was sent to the hub.
#[derive(Default)]
pub(super) struct Uploads {
    /// Bytes of the store by their SHA-256.
    pub(super) stored: BTreeMap<String, Vec<u8>>,
    /// Files that are sent: their digest, size, and pieces by number.
    announced: Vec<Announced>,
    /// Bytes of a piece of a large file; files are sent whole if it is `None`.
    pub(super) piece: Option<u64>,
}

struct Announced {
    oid: String,
    size: u64,
    pieces: BTreeMap<u64, Vec<u8>>,
}

impl State {
    /// Answers a request with a body.
    pub(super) fn take(&mut self, asked: &Asked, at_store: bool) -> Answer {
        let path = asked.path().to_owned();
        if at_store {
            return self.take_piece(asked);
        }
        // What Hugging Face's client asks before it uploads a model card.
        if path == "/api/validate-yaml" {
            return json_answer(&json!({ "errors": [], "warnings": [] }));
        }
        if path == "/complete" {
            return self.complete(asked);
        }
        // Only a token may write.
        let Some(token) = asked.header("authorization").map(str::to_owned) else {
            return Answer::new(401, "Invalid username or password.");
        };
        if path == "/api/repos/create" {
            return self.create(asked, &token);
        }
        if path == "/verify" {
            return self.verify(asked);
        }
        let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        match parts[..] {
            ["api", "models", org, name, "preupload", revision] => {
                self.preupload(asked, &format!("{org}/{name}"), &decoded(revision))
            }
            ["api", "models", org, name, "commit", revision] => {
                self.commit_files(asked, &format!("{org}/{name}"), &decoded(revision))
            }
            [org, name, "info", "lfs", "objects", "batch"] => {
                self.batch(asked, &format!("{org}/{}", name.trim_end_matches(".git")))
            }
            _ => Answer::new(404, "Not Found"),
        }
    }

    fn create(&mut self, asked: &Asked, token: &str) -> Answer {
        let body = asked.json();
        let text = |key: &str| body[key].as_str().unwrap_or_default().to_owned();
        let repo = match text("organization").as_str() {
            "" => format!("me/{}", text("name")),
            organization => format!("{organization}/{}", text("name")),
        };
        let url = format!("{}/{repo}", self.hub_url);
        if self.repositories.contains_key(&repo) {
            let body = json!({ "error": "You already created this model repo", "url": url });
            return Answer::new(409, body.to_string());
        }
        self.next_commit += 1;
        let commit = commit_id(self.next_commit);
        let mut repository = Repository::default();
        let attributes = Content::of(".gitattributes", b"*.safetensors filter=lfs\n");
        let files = BTreeMap::from([(".gitattributes".to_owned(), attributes)]);
        repository.commits.insert(commit.clone(), files);
        repository.branches.insert("main".to_owned(), commit);
        if body["private"] == true {
            repository.token = token.strip_prefix("Bearer ").map(str::to_owned);
        }
        self.repositories.insert(repo.clone(), repository);
        json_answer(&json!({ "url": url }))
    }

    fn preupload(&self, asked: &Asked, repo: &str, revision: &str) -> Answer {
        let (repository, commit) = match self.at(asked, repo, revision) {
            Ok(found) => found,
            Err(answer) => return *answer,
        };
        let there = &repository.commits[&commit];
        let ignored = there.get(".gitignore").map(|file| file.bytes(0..file.len).to_vec());
        let ignored = String::from_utf8(ignored.unwrap_or_default()).expect("a text");
        let body = asked.json();
        let files = body["files"].as_array().expect("files").iter().map(|file| {
            let name = file["path"].as_str().expect("a path");
            let mode = if is_large(name) { "lfs" } else { "regular" };
            let is_ignored = ignored.lines().any(|line| line == name);
            let oid = there.get(name).map(|content| content.etag.clone());
            json!({ "path": name, "uploadMode": mode, "shouldIgnore": is_ignored, "oid": oid })
        });
        json_answer(&json!({ "files": files.collect::<Vec<_>>() }))
    }

    fn batch(&mut self, asked: &Asked, repo: &str) -> Answer {
        if let Err(answer) = self.at(asked, repo, "main") {
            return *answer;
        }
        let body = asked.json();
        let objects = body["objects"].as_array().expect("objects").iter().map(|object| {
            let oid = object["oid"].as_str().expect("a digest").to_owned();
            let size = object["size"].as_u64().expect("a size");
            if self.uploads.stored.contains_key(&oid) {
                return json!({ "oid": oid, "size": size });
            }
            let number = self.uploads.announced.len();
            let place = format!("{}/upload/{number}", self.store_url);
            let upload = match self.uploads.piece.filter(|piece| size > *piece) {
                None => json!({ "href": place, "header": { "x-upload": "yes" } }),
                Some(piece) => {
                    let mut header = serde_json::Map::new();
                    header.insert("chunk_size".to_owned(), json!(piece.to_string()));
                    for part in 1..=size.div_ceil(piece) {
                        header.insert(format!("{part:05}"), json!(format!("{place}?part={part}")));
                    }
                    let href = format!("{}/complete?file={number}", self.hub_url);
                    json!({ "href": href, "header": header })
                }
            };
            let file = Announced { oid: oid.clone(), size, pieces: BTreeMap::new() };
            self.uploads.announced.push(file);
            let verify = json!({ "href": format!("{}/verify", self.hub_url) });
            json!({ "oid": oid, "size": size, "actions": { "upload": upload, "verify": verify } })
        });
        let objects: Vec<Value> = objects.collect();
        let is_split = self.uploads.piece.is_some();
        let transfer = if is_split { "multipart" } else { "basic" };
        json_answer(&json!({ "transfer": transfer, "objects": objects }))
    }

    fn take_piece(&mut self, asked: &Asked) -> Answer {
        let number: usize =
            asked.path().rsplit('/').next().and_then(|it| it.parse().ok()).expect("a number");
        let Some(file) = self.uploads.announced.get_mut(number) else {
            return Answer::new(403, "<Error>no</Error>");
        };
        // A store takes no token of the hub.
        if asked.header("authorization").is_some() {
            return Answer::new(400, "<Error>two kinds of authorization</Error>");
        }
        let part = asked.query("part").map(|part| part.parse().expect("a number"));
        file.pieces.insert(part.unwrap_or(0), asked.body.clone());
        if part.is_none() && !self.finish(number) {
            return Answer::new(400, "<Error>XAmzContentSHA256Mismatch</Error>");
        }
        Answer::new(200, "").with("ETag", format!("\"{}\"", &sha256(&asked.body)[..32]))
    }

    /// Puts a file whose pieces have come into the store, if they are the file.
    fn finish(&mut self, number: usize) -> bool {
        let file = &mut self.uploads.announced[number];
        let bytes: Vec<u8> = std::mem::take(&mut file.pieces).into_values().flatten().collect();
        let is_it = bytes.len() as u64 == file.size && sha256(&bytes) == file.oid;
        if is_it {
            self.uploads.stored.insert(file.oid.clone(), bytes);
        }
        is_it
    }

    fn complete(&mut self, asked: &Asked) -> Answer {
        let number: usize = asked.query("file").and_then(|it| it.parse().ok()).expect("a number");
        let body = asked.json();
        let parts = body["parts"].as_array().expect("parts").clone();
        let file = &self.uploads.announced[number];
        let agrees = parts.len() == file.pieces.len()
            && parts.iter().zip(&file.pieces).all(|(part, (number, bytes))| {
                let etag = format!("\"{}\"", &sha256(bytes)[..32]);
                part["partNumber"] == *number && part["etag"] == etag.as_str()
            });
        match agrees && self.finish(number) {
            true => Answer::new(200, ""),
            false => Answer::new(400, "the pieces are not the file"),
        }
    }

    fn verify(&self, asked: &Asked) -> Answer {
        let body = asked.json();
        let stored = self.uploads.stored.get(body["oid"].as_str().unwrap_or_default());
        let is_there = stored.is_some_and(|bytes| body["size"] == bytes.len() as u64);
        Answer::new(if is_there { 200 } else { 404 }, "")
    }

    fn commit_files(&mut self, asked: &Asked, repo: &str, revision: &str) -> Answer {
        let mut files = match self.at(asked, repo, revision) {
            Ok((repository, commit)) => repository.commits[&commit].clone(),
            Err(answer) => return *answer,
        };
        let body = String::from_utf8(asked.body.clone()).expect("a text");
        for line in body.lines().filter(|line| !line.is_empty()) {
            let entry: Value = serde_json::from_str(line).expect("JSON");
            let value = &entry["value"];
            let text = |key: &str| value[key].as_str().unwrap_or_default().to_owned();
            match entry["key"].as_str() {
                Some("header") => self.summaries.push(text("summary")),
                Some("file") => {
                    let bytes = from_base64(&text("content"));
                    files.insert(text("path"), Content::small(&bytes));
                }
                Some("lfsFile") => {
                    let Some(bytes) = self.uploads.stored.get(&text("oid")) else {
                        return absent("EntryNotFound");
                    };
                    files.insert(text("path"), Content::large(bytes));
                }
                _ => return Answer::new(400, "an unknown entry"),
            }
        }
        self.next_commit += 1;
        let commit = commit_id(self.next_commit);
        let is_proposal = asked.query("create_pr") == Some("1");
        let branch = if is_proposal { "refs/pr/1".to_owned() } else { revision.to_owned() };
        let repository = self.repositories.get_mut(repo).expect("a repository");
        repository.commits.insert(commit.clone(), files);
        repository.branches.insert(branch, commit.clone());
        let mut answer = json!({
            "success": true, "commitOid": commit,
            "commitUrl": format!("{}/{repo}/commit/{commit}", self.hub_url), "hookOutput": "",
        });
        if is_proposal {
            answer["pullRequestUrl"] = json!(format!("{}/{repo}/discussions/1", self.hub_url));
        }
        json_answer(&answer)
    }
}
