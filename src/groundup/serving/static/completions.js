// Streamed completions of a prompt or a conversation: reads server-sent events, yields tokens with
// their alternatives.

import { RequestProblem, request } from "./shell.js";

const NUM_ALTERNATIVES = 8;

/** Yields { text, tokens, finishReason, usage } for each event. */
export async function* streamCompletion(body, signal) {
  const whole = { ...body, logprobs: NUM_ALTERNATIVES };
  for await (const event of streamEvents("/v1/completions", whole, signal)) {
    const choice = event.choices[0];
    yield readEvent(event, choice?.text, readTokens(choice?.logprobs));
  }
}

/** Like streamCompletion, for a conversation. */
export async function* streamChat(body, signal) {
  const whole = { ...body, logprobs: true, top_logprobs: NUM_ALTERNATIVES };
  for await (const event of streamEvents("/v1/chat/completions", whole, signal)) {
    const choice = event.choices[0];
    yield readEvent(event, choice?.delta.content, (choice?.logprobs?.content ?? []).map(readChatToken));
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
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let pending = "";
  for (;;) {
    const piece = await reader.read().catch((error) => {
      if (error.name === "AbortError") throw error;
      return { done: true };
    });
    if (piece.done) throw new RequestProblem("The connection was lost before the text was complete. Try again.");
    const lines = (pending + piece.value).split("\n");
    pending = lines.pop();
    for (const line of lines) {
      if (line === "data: [DONE]") return;
      if (!line.startsWith("data: ")) continue;
      const event = JSON.parse(line.slice(6));
      if (event.error) throw new RequestProblem(event.error.message);
      yield event;
    }
  }
}

// Most likely first, the order of their ids. The texts are sorted again because JavaScript objects
// list keys that look like integers first.
function readTokens(logprobs) {
  return (logprobs?.tokens ?? []).map((text, index) => ({
    id: logprobs.token_ids[index],
    text,
    probability: Math.exp(logprobs.token_logprobs[index]),
    alternatives: Object.entries(logprobs.top_logprobs[index])
      .sort(([, first], [, second]) => second - first)
      .map(([other, value], rank) => ({
        id: logprobs.top_ids[index][rank],
        text: other,
        probability: Math.exp(value),
      })),
  }));
}

function readChatToken(entry) {
  const read = ({ id, token, logprob }) => ({ id, text: token, probability: Math.exp(logprob) });
  const chosen = read(entry);
  const alternatives = entry.top_logprobs.map(read);
  if (!alternatives.some(({ id }) => id === chosen.id)) alternatives.push(chosen);
  return { ...chosen, alternatives };
}
