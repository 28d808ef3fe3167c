//! What a test hub answers.

use std::ops::Range;
use std::time::Duration;

use serde_json::{Value, json};

use super::content::{Body, Content};
use super::http::{Answer, Asked};
use super::{Fault, Repository, State};

impl State {
    /// Answers a request, with faults if a rule applies.
    pub(super) fn answer(&mut self, asked: &Asked, at_store: bool) -> Answer {
        if asked.method == "CONNECT" {
            // As a proxy it is every server.
            return Answer::new(200, "");
        }

        let fault = self.fault_of(&asked.target);
        match &fault {
            Some(Fault::Status(status, headers)) => {
                let answer = Answer::new(*status, "trouble");
                return headers
                    .iter()
                    .fold(answer, |answer, (name, value)| answer.with(name, value));
            }
            Some(Fault::Redirect(target)) => return Answer::new(302, "").with("Location", target),
            _ => {}
        }

        if matches!(asked.method.as_str(), "POST" | "PUT") {
            let mut answer = self.take(asked, at_store);
            self.spoil(&mut answer, fault.as_ref());
            return answer;
        }
        if at_store {
            return self.stored_file(asked, fault.as_ref());
        }
        if let Some(content) = self.files.get(asked.path()).cloned() {
            return self.file(asked, &content, fault.as_ref());
        }
        if let Some(rest) = asked.path().strip_prefix("/api/models") {
            let mut answer = self.api(asked, rest.trim_start_matches('/'));
            self.spoil(&mut answer, fault.as_ref());
            return answer;
        }

        self.resolve(asked, fault.as_ref())
    }

    fn fault_of(&mut self, target: &str) -> Option<Fault> {
        for rule in self.rules.iter_mut().filter(|rule| target.contains(&rule.matching)) {
            if rule.skip > 0 {
                rule.skip -= 1;
                continue;
            }
            if rule.times > 0 {
                rule.times -= 1;
                return Some(rule.fault.clone());
            }
        }
        None
    }

    fn api(&self, asked: &Asked, rest: &str) -> Answer {
        if rest.is_empty() {
            return self.search(asked);
        }

        let parts: Vec<&str> = rest.splitn(4, '/').collect();
        let [org, name, what, rest @ ..] = &parts[..] else {
            return self.info(asked, rest, "main");
        };
        let repo = format!("{org}/{name}");
        match (*what, rest) {
            ("revision", [revision]) => self.info(asked, &repo, &decoded(revision)),
            ("refs", _) => self.refs(&repo),
            ("tree", [revision]) => self.tree(asked, &repo, &decoded(revision)),
            _ => Answer::new(404, "Not Found"),
        }
    }

    fn search(&self, asked: &Asked) -> Answer {
        let (author, search) =
            (asked.query("author").map(decoded), asked.query("search").map(decoded));
        let is_found = |repo: &&String| {
            let is_author =
                author.as_ref().is_none_or(|author| repo.starts_with(&format!("{author}/")));
            is_author && search.as_ref().is_none_or(|search| repo.contains(search))
        };
        let found = self.repositories.iter().filter(|(_, repository)| repository.token.is_none());
        let found: Vec<Value> = found
            .map(|(repo, _)| repo)
            .filter(is_found)
            .map(|repo| json!({ "id": repo }))
            .collect();
        json_answer(&Value::Array(found))
    }

    fn info(&self, asked: &Asked, repo: &str, revision: &str) -> Answer {
        let (repository, commit) = match self.at(asked, repo, revision) {
            Ok(found) => found,
            Err(answer) => return *answer,
        };
        let siblings = repository.commits[&commit].iter().map(|(name, content)| {
            if self.lists_names_alone {
                return json!({ "rfilename": name });
            }
            let mut entry =
                json!({ "rfilename": name, "size": content.len, "blobId": content.etag });
            if content.large {
                entry["blobId"] = json!("0".repeat(40));
                entry["lfs"] =
                    json!({ "sha256": content.etag, "size": content.len, "pointerSize": 130 });
            }
            entry
        });

        let siblings: Vec<Value> = siblings.collect();
        json_answer(&json!({
            "id": repo, "modelId": repo, "sha": commit, "siblings": siblings, "private": false,
            "gated": repository.gated, "disabled": false, "downloads": 0, "likes": 0, "tags": [],
            "cardData": { "license": repository.license },
        }))
    }

    fn tree(&self, asked: &Asked, repo: &str, revision: &str) -> Answer {
        let (repository, commit) = match self.at(asked, repo, revision) {
            Ok(found) => found,
            Err(answer) => return *answer,
        };
        let entries = repository.commits[&commit].iter().map(|(name, content)| {
            let mut entry =
                json!({ "type": "file", "path": name, "size": content.len, "oid": content.etag });
            if content.large {
                entry["oid"] = json!("0".repeat(40));
                entry["lfs"] =
                    json!({ "oid": content.etag, "size": content.len, "pointerSize": 130 });
            }
            entry
        });

        json_answer(&Value::Array(entries.collect())).with("X-Repo-Commit", commit)
    }

    fn refs(&self, repo: &str) -> Answer {
        let Some(repository) = self.repositories.get(repo) else { return absent("RepoNotFound") };
        let branches = repository.branches.iter().map(|(name, commit)| {
            json!({
                "name": name, "ref": format!("refs/heads/{name}"), "targetCommit": commit,
            })
        });
        json_answer(
            &json!({ "branches": branches.collect::<Vec<_>>(), "tags": [], "converts": [] }),
        )
    }

    /// The repository and the commit that a request is about, for those who may see it.
    pub(super) fn at(
        &self,
        asked: &Asked,
        repo: &str,
        revision: &str,
    ) -> Result<(&Repository, String), Box<Answer>> {
        let repository =
            self.repositories.get(repo).ok_or_else(|| Box::new(absent("RepoNotFound")))?;
        let token = asked.header("authorization").and_then(|value| value.strip_prefix("Bearer "));
        if repository.token.as_deref().is_some_and(|wanted| token != Some(wanted)) {
            let answer = Answer::new(401, "Invalid username or password.");
            return Err(Box::new(answer.with("X-Error-Code", "RepoNotFound")));
        }
        let commit = repository.branches.get(revision).cloned();
        let commit = commit
            .or_else(|| repository.commits.contains_key(revision).then(|| revision.to_owned()));
        Ok((repository, commit.ok_or_else(|| Box::new(absent("RevisionNotFound")))?))
    }

    /// `/ORG/REPO/resolve/REVISION/FILE`
    fn resolve(&mut self, asked: &Asked, fault: Option<&Fault>) -> Answer {
        let parts: Vec<&str> = asked.path().trim_start_matches('/').splitn(5, '/').collect();
        let [org, name, "resolve", revision, file] = parts[..] else {
            return Answer::new(404, "Not Found");
        };
        let repo = format!("{org}/{name}");
        let (repository, commit) = match self.at(asked, &repo, &decoded(revision)) {
            Ok(found) => found,
            Err(answer) => return *answer,
        };
        if repository.gated {
            return Answer::new(403, "Access to model is restricted")
                .with("X-Error-Code", "GatedRepo")
                .with(
                    "X-Error-Message",
                    "Access to model is restricted and you are not in the authorized list.",
                );
        }

        let Some(content) = repository.commits[&commit].get(&decoded(file)).cloned() else {
            return absent("EntryNotFound").with("X-Repo-Commit", commit);
        };
        if !content.large {
            return self.file(asked, &content, fault).with("X-Repo-Commit", commit);
        }

        let number = self.signed.len() as u64;
        let key = format!("{repo} {commit} {}", decoded(file));
        self.signed.insert(number, (key, self.uses.unwrap_or(u32::MAX)));
        let location = format!(
            "{}/store/{}?signature={number}",
            self.store_url,
            decoded(file).replace('/', "-")
        );
        Answer::new(302, "")
            .with("Location", location)
            .with("X-Repo-Commit", commit)
            .with("X-Linked-Etag", format!("\"{}\"", content.etag))
            .with("X-Linked-Size", content.len.to_string())
    }

    fn stored_file(&mut self, asked: &Asked, fault: Option<&Fault>) -> Answer {
        let number =
            asked.query("signature").and_then(|number| number.parse().ok()).unwrap_or(u64::MAX);
        let Some((key, left)) = self.signed.get_mut(&number) else {
            return Answer::new(403, "<Error>no</Error>");
        };
        if *left == 0 {
            return Answer::new(403, "<Error>Request has expired</Error>");
        }

        *left -= 1;
        let key = key.clone();
        let mut words = key.splitn(3, ' ');
        let mut word = || words.next().expect("three words").to_owned();
        let (repo, commit, file) = (word(), word(), word());
        let content = self.repositories[&repo].commits[&commit][&file].clone();
        self.file(asked, &content, fault)
    }

    /// Answers with a file, or with the requested range of it.
    fn file(&mut self, asked: &Asked, content: &Content, fault: Option<&Fault>) -> Answer {
        let etag = match fault {
            Some(Fault::OtherEtag) => "\"other\"".to_owned(),
            _ => format!("\"{}\"", content.etag),
        };
        let is_same = asked.header("if-range").is_none_or(|wanted| wanted == etag);
        let range =
            asked.header("range").filter(|_| is_same && !matches!(fault, Some(Fault::NoRanges)));
        let longer = if let Some(Fault::Longer(more)) = fault { *more } else { 0 };
        let mut answer = match range.map(|range| parse_range(range, content.len)) {
            Some(Some(range)) => {
                let text =
                    format!("bytes {}-{}/{}", range.start, range.end - 1, content.len + longer);
                Answer::new(206, body(asked, content, range)).with("Content-Range", text)
            }
            Some(None) => {
                Answer::new(416, "").with("Content-Range", format!("bytes */{}", content.len))
            }
            None => {
                let mut answer = Answer::new(200, body(asked, content, 0..content.len));
                answer.stated = (asked.method == "HEAD").then_some(content.len);
                answer
            }
        };

        if longer > 0 && answer.status == 200 {
            let len = answer.body.len() + usize::try_from(longer).expect("small");
            answer.body.to_mut().resize(len, 0);
        }

        if !matches!(fault, Some(Fault::NoRanges)) {
            answer = answer.with("Accept-Ranges", "bytes");
        }

        self.spoil(&mut answer, fault);
        answer.with("ETag", etag)
    }

    fn spoil(&mut self, answer: &mut Answer, fault: Option<&Fault>) {
        match fault {
            Some(Fault::Cut(after)) => answer.cut = Some((*after, Duration::ZERO)),
            Some(Fault::Trickle(at_once, pause)) => answer.trickle = Some((*at_once, *pause)),
            Some(Fault::Stall(after, stall)) => answer.cut = Some((*after, *stall)),
            Some(Fault::Flip) => {
                if let Some(byte) = answer.body.to_mut().last_mut() {
                    *byte ^= 1;
                }
            }
            _ => {}
        }

        self.answers += 1;
        if self.cut_every > 0 && self.answers.is_multiple_of(self.cut_every) {
            answer.cut = Some((answer.body.len() as u64 / 2, Duration::ZERO));
        }
    }
}

fn body(asked: &Asked, content: &Content, range: Range<u64>) -> Body {
    if asked.method == "HEAD" { Body::Own(Vec::new()) } else { content.bytes(range) }
}

fn parse_range(text: &str, len: u64) -> Option<Range<u64>> {
    let (first, last) = text.strip_prefix("bytes=")?.split_once('-')?;
    let first: u64 = first.parse().ok()?;
    let end = last.parse::<u64>().map_or(len, |last| (last + 1).min(len));
    (first < end).then_some(first..end)
}

pub(super) fn absent(code: &str) -> Answer {
    Answer::new(404, json!({ "error": "not found" }).to_string()).with("X-Error-Code", code)
}

pub(super) fn json_answer(value: &Value) -> Answer {
    Answer::new(200, value.to_string()).with("Content-Type", "application/json")
}

pub(super) fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digits: String = rest.by_ref().take(2).map(char::from).collect();
        bytes.push(u8::from_str_radix(&digits, 16).unwrap_or(b'?'));
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
