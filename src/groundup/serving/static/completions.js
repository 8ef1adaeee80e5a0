// One streamed completion, of a text or of a conversation: server-sent events in, tokens with their
// alternatives out.

import { RequestProblem, request } from "./shell.js";

const NUM_ALTERNATIVES = 8;

/** Yields { text, tokens, finishReason, usage } for each event until the server is done. */
export async function* streamCompletion(body, signal) {
  // The page asks for a text, whatever its length: a full context moves on.
  const whole = { ...body, past_context: "slide", logprobs: NUM_ALTERNATIVES };
  for await (const event of streamEvents("/v1/completions", whole, signal)) {
    const choice = event.choices[0];
    yield readEvent(event, choice?.text, readTokens(choice?.logprobs));
  }
}

/** The same for the answer to a conversation. */
export async function* streamChat(body, signal) {
  const whole = { ...body, logprobs: true, top_logprobs: NUM_ALTERNATIVES };
  for await (const event of streamEvents("/v1/chat/completions", whole, signal)) {
    const choice = event.choices[0];
    yield readEvent(event, choice?.delta.content, readChatTokens(choice?.logprobs));
  }
}

function readEvent(event, text, tokens) {
  const finishReason = event.choices[0]?.finish_reason ?? null;
  return { text: text ?? "", tokens, finishReason, usage: event.usage ?? null };
}

async function* streamEvents(path, body, signal) {
  const response = await request(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  for await (const data of readEvents(response.body)) {
    if (data === "[DONE]") return;
    const event = JSON.parse(data);
    if (event.error) throw new RequestProblem(event.error.message);
    yield event;
  }
  throw new RequestProblem("The server broke off in the middle of the text. Try again.");
}

async function* readEvents(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let pending = "";
  for (;;) {
    let piece;
    try {
      piece = await reader.read();
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new RequestProblem("The connection was lost in the middle of the text. Try again.");
    }
    if (piece.done) return;
    pending += piece.value;
    const lines = pending.split(/\r?\n/);
    pending = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data:")) yield line.slice(5).trim();
    }
  }
}

function readTokens(logprobs) {
  return (logprobs?.tokens ?? []).map((text, index) => {
    const chosen = {
      id: logprobs.token_ids[index],
      text,
      probability: Math.exp(logprobs.token_logprobs[index]),
    };
    const alternatives = readAlternatives(logprobs.top_logprobs[index], logprobs.top_ids[index]);
    return { ...chosen, alternatives: markChosen(alternatives, chosen) };
  });
}

function readChatTokens(logprobs) {
  const read = ({ id, token, logprob }) => ({ id, text: token, probability: Math.exp(logprob) });
  return (logprobs?.content ?? []).map((entry) => {
    const chosen = read(entry);
    const others = entry.top_logprobs.map(read);
    if (!others.some(({ id }) => id === chosen.id)) others.push(chosen);
    const alternatives = others.map((one) => ({ ...one, isChosen: one.id === chosen.id }));
    return { ...chosen, alternatives };
  });
}

// The likeliest first, as their ids come. The texts are sorted again because an object of
// JavaScript puts the keys that look like numbers before all others.
function readAlternatives(logprobs, ids) {
  return Object.entries(logprobs ?? {})
    .sort(([, first], [, second]) => second - first)
    .map(([text, logProbability], rank) => ({
      id: ids[rank],
      text,
      probability: Math.exp(logProbability),
    }));
}

// The server names the chosen token among the others; by its text, since equal ones share a rank.
function markChosen(alternatives, chosen) {
  const found =
    alternatives.find(({ text }) => text === chosen.text) ??
    alternatives.find(({ id }) => id === chosen.id);
  return alternatives.map((alternative) => ({
    ...alternative,
    isChosen: alternative === found,
  }));
}
