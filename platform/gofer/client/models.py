"""What the API says: one model per answer. The server's OpenAPI document and the Python client are made of these."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Role = Literal["owner", "operator", "viewer"]
Scope = Literal["read", "write", "admin"]
State = Literal["ready", "blocked", "running", "scheduled", "waiting", "done", "dead", "cancelled"]


class Shape(BaseModel):
    """What each of them is. Its validator is built when it is first needed: a process needs few of them, and a server
    none before somebody calls."""

    model_config = ConfigDict(defer_build=True)


class Problem(Shape):
    """Why not (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    code: str = ""


class Job(Shape):
    """A durable promise to do one piece of work."""

    id: int
    workspace_id: str
    kind: str
    pool: str
    state: State
    lane: str
    priority: int
    run_at: float
    attempts: int
    max_attempts: int
    fence: int
    owner: str | None
    lease_until: float | None
    cancel_requested: bool
    event_seq: int
    conversation_id: str | None
    participant_id: str | None
    agent_id: str | None
    connection_id: str | None
    covers_from: int
    covers_to: int | None
    unique_key: str | None
    parent_id: int | None
    """The job that made it and may wait for it."""
    reason: str
    created_at: float
    finished_at: float | None


class JobInFull(Job):
    """A job with what it was given."""

    payload: dict[str, Any]


class Jobs(Shape):
    """Jobs, newest first."""

    jobs: list[Job]
    next: str | None
    """The cursor of the next page; null at the end."""


class Attempt(Shape):
    """One try at a job by one worker."""

    job_id: int
    fence: int
    number: int
    owner: str
    started_at: float
    ended_at: float | None
    outcome: str
    reason: str
    cost: float


class Event(Shape):
    """One row of the log. Its data has the words that belong to it."""

    id: int
    workspace_id: str
    kind: str
    version: int
    parent_id: int | None
    conversation_id: str | None
    job_id: int | None
    seq: int | None
    fence: int | None
    delivery_id: int | None
    reply_id: int | None
    data: dict[str, Any]
    tx: int
    at: float


class LiveFrame(Shape):
    """Something that happens in a conversation while it is followed."""

    type: Literal["text", "output", "item", "state"]
    job: int | None = None
    """`text`: the run whose words these are."""
    text: str = ""
    """`text`, `output`: what comes next."""
    whole: bool = False
    """`text`, `output`: it begins anew, and replaces what came before."""
    item: dict[str, Any] | str | None = None
    """`item`: a message, a reply, a step or a question; `output`: the id of the step that prints it."""
    state: str = ""
    """`state`: idle, queued, working, waiting or retrying."""


class Reply(Shape):
    """One part of something that is sent."""

    id: int
    workspace_id: str
    conversation_id: str
    binding_id: str
    job_id: int
    kind: str
    part: int
    parts: int
    reply_to: str
    state: Literal["planned", "placed", "sent", "failed"]
    external_id: str
    tries: int
    reason: str
    created_at: float
    sent_at: float | None
    confirm_at: float | None
    failed_in: int | None = None
    """The deliver job that gave it up."""


class Hop(Shape):
    """One step of a trigger: what was tried to wake an external agent, and what came of it."""

    trigger: int
    number: int
    action: str
    """live, resume, spawn, fallback or dead_letter."""
    state: str
    reason: str
    tries: int
    covers_to: int
    created_at: float
    delivered_at: float | None
    ended_at: float | None
    runtime: str
    """Empty when it went to none, or the runtime was removed."""
    answered_by: int | None
    """The job of the agent that stands in, if it was handed over."""


class KeptPost(Shape):
    """What an external agent said for a hop that was over. It was not sent, and never will be."""

    hop: int
    job: int
    created_at: float
    text: str | None
    """Only with `words`; None, too, when it was purged."""


class JobStory(Shape):
    """A job with its attempts, events and replies."""

    job: JobInFull
    attempts: list[Attempt]
    events: list[Event]
    replies: list[Reply]
    hops: list[Hop]
    """Of an external agent's job: what was tried to wake it."""
    kept: list[KeptPost]
    """What it said too late, which was not sent."""


class Steered(Shape):
    """What became of a job that was cancelled or redriven."""

    id: int
    state: State


class SteeredMany(Shape):
    """What became of several: those done, and why the others were not."""

    done: list[Steered]
    refused: dict[str, str]


class Delivery(Shape):
    """One inbound request."""

    id: int
    workspace_id: str
    connection_id: str
    external_id: str
    body_hash: str
    source: str
    event: str
    note: str
    conversation_id: str | None
    message_seq: int | None
    received_at: float


class Deliveries(Shape):
    """Deliveries, newest first."""

    deliveries: list[Delivery]
    next: str | None


class DeliveryInFull(Shape):
    """A delivery with what it said; headers that carry secrets were never kept."""

    delivery: Delivery
    headers: list[list[str]]
    body: str | None


class TakenIn(Shape):
    """The result of a delivery."""

    result: Literal["accepted", "repeat", "redriven", "noted"]
    delivery_id: int | None
    conversation_id: str | None
    seq: int | None


class Said(Shape):
    """A message that was taken in, and the job that answers it, if one is there already."""

    conversation_id: str
    seq: int | None
    job_id: int | None
    result: Literal["accepted", "repeat", "redriven", "noted", "kept"]
    """kept: it came too late to be sent."""
    reason: str = ""


class Conversation(Shape):
    """An ordered list of messages, and where it is held."""

    id: str
    workspace_id: str
    kind: str
    title: str
    last_seq: int
    agent_id: str | None
    """The agent that was chosen for it; null for those that hear everything there."""
    model: str
    """The model that was chosen for it; empty for the agent's own."""
    private: bool | None
    """Whether nobody but one person and Gofer reads it; null, when that is not known, counts as no."""
    created_at: float
    purged_at: float | None
    closed_at: float | None
    """When its place was closed; null while it is open."""
    connection_id: str | None
    ref: str | None


class Conversations(Shape):
    """Conversations, newest first."""

    conversations: list[Conversation]
    next: str | None


class Message(Shape):
    """One entry in a conversation."""

    seq: int
    """Its number; of a note by Gofer itself, the number of the message that it follows."""
    reply: int | None = None
    """The number of a note by Gofer itself, such as the answer to a command; null for a message."""
    memory_id: str
    """What it is recalled by; empty for a note by Gofer itself."""
    author: str
    name: str
    trust: str
    event: str
    addressed: bool
    text: str | None
    """Null when it was purged."""
    attachments: list[str]
    created_at: float


class Messages(Shape):
    """Messages, newest first."""

    messages: list[Message]
    next: str | None


class Rule(Shape):
    """A standing rule of a conversation: a sentence that every run there reads word for word."""

    id: str
    """Its memory id."""
    text: str
    author: str
    trust: str
    message_seq: int | None
    """The message that said it."""
    revoked: bool
    ended: bool
    """It was said before `/new`, so no run reads it any more."""
    version: int
    since: float


class Rules(Shape):
    """The standing rules of a conversation, oldest first; those that were revoked as well."""

    rules: list[Rule]


class Memory(Shape):
    """Something that is remembered."""

    id: str
    version: int
    kind: str
    """turn, result, plan, summary, note or rule."""
    scope: str
    """Who may hear of it: conversation:ID, person:ID or agent:ID."""
    state: str
    """live, forgotten, superseded (something newer took its place) or unreadable (damaged, or its key is lost)."""
    superseded_by: str | None
    """The memory that took its place."""
    gist: str
    text: str
    author: str
    trust: str
    conversation_id: str | None
    message_seq: int | None
    job_id: int | None
    source_gone: bool
    """The conversation it came from is purged."""
    score: float | None
    """How well it fits what was searched for."""
    at: float


class Memories(Shape):
    """Memories, and the scopes that could not be searched as they should."""

    memories: list[Memory]
    degraded: list[str]
    problems: list[str]
    """What is wrong with these scopes, or with memory as a whole, and what to do about it."""


class MemoryVersion(Memory):
    """One version of a memory."""

    until: float | None
    diff: str
    """What changed from the version before."""


class MemoryInFull(MemoryVersion):
    """A memory with all its versions, oldest first."""

    versions: list[MemoryVersion]


class MemoryForgotten(Shape):
    """A memory that was forgotten."""

    id: str
    version: int


class ExportedMemory(Shape):
    """One line of an export."""

    id: str
    version: int
    kind: str
    state: str
    """live, or unreadable without its text."""
    scope: str
    scope_name: str
    """What an agent or a person is called."""
    scope_known_as: list[str]
    """A person's accounts, or a conversation's places: by these another instance knows them."""
    text: str
    author: str
    trust: str
    untrusted: bool
    """Strangers' words are in it."""
    conversation_id: str | None
    message_seq: int | None
    at: float


class MemoryExport(Shape):
    """Everything that was noted, oldest first."""

    memories: list[ExportedMemory]


class MemoriesImported(Shape):
    """What an import kept."""

    scope: str
    """Who may hear of it; empty where each line said it itself."""
    imported: int
    known: int
    """How many of these were here before."""
    forgotten: int
    """How many of its memories were forgotten here, and stay so."""
    left_out: int
    """How many could not be read when they were exported, or are for audiences that are not here."""
    placed: dict[str, str]
    """Audiences of the file that are known by another id here."""


class Reindexing(Shape):
    """How many scopes are being indexed anew."""

    scopes: int
    degraded: list[str]
    """Those that still cannot be read as they should, because a key is lost or a memory is damaged."""


class Goal(Shape):
    """Something that a person wants: planned, done by tasks, and reported once."""

    id: str
    state: str
    """planning, active, blocked, paused, done, failed or cancelled."""
    reason: str
    text: str
    """What is wanted; empty when its conversation is purged."""
    agent: str
    asked_by: str
    conversation_id: str
    connection_id: str | None
    message_seq: int | None
    job_id: int | None
    """The job that drives it."""
    tasks_done: int
    task_count: int
    spent: float
    """Dollars, as of the last task's end."""
    budget: float | None
    replans: int
    narrowed: bool
    """A task has read strangers' text."""
    needs_approval: bool
    until: float | None
    created_at: float
    changed_at: float
    finished_at: float | None


class Goals(Shape):
    """Goals, newest first."""

    goals: list[Goal]
    next: str | None


class GoalTask(Shape):
    """A task of a goal; kinds plan and report are runs of its planner and of whoever writes its report."""

    id: str
    number: int
    kind: str
    state: str
    """queued, running, done, failed, blocked or dropped."""
    reason: str
    title: str
    needs: list[int]
    summary: str
    open_points: list[str]
    question: str
    job_id: int | None
    tries: int
    cost: float
    created_at: float
    started_at: float | None
    finished_at: float | None


class GoalWord(Shape):
    """Something that somebody said about a goal."""

    by: str
    trust: str
    text: str


class GoalInFull(Goal):
    """A goal with its tasks, and what was said about it."""

    reply: str
    """What the planner said with its last plan."""
    tasks: list[GoalTask]
    words: list[GoalWord]


class GoalSteered(Shape):
    """A goal's state after somebody changed it; `told` or `answered` when something was said about it."""

    id: str
    state: str


class Purged(Shape):
    """What a purge removed."""

    conversation_id: str
    messages: int
    deliveries: int
    blobs: int
    jobs_ended: int


class Health(Shape):
    """How a connection is doing, by its service's word."""

    ok: bool
    line: str
    fix: str
    learned: dict[str, Any]


class Connection(Shape):
    """One configured account of an integration."""

    id: str
    workspace_id: str
    integration: str
    name: str
    enabled: bool
    settings: dict[str, Any]
    max_running: int | None
    agent: str | None
    """The agent that answers what no route fits; null for the instance's default agent."""
    created_at: float
    hook_path: str
    hook_url: str | None


class Connections(Shape):
    """All of them, the oldest first."""

    connections: list[Connection]


class ConnectionInFull(Shape):
    """One, with the names of its secrets and when it was last heard of."""

    connection: Connection
    secrets: list[str]
    deliveries: int
    last_delivery_at: float | None


class ConnectionChanged(ConnectionInFull):
    """One that was made or changed, and what its service says."""

    health: Health
    invitation: str = ""


class ConnectionTested(Shape):
    """What its service says now."""

    id: str
    health: Health


class SignUpForm(Shape):
    """What a browser posts to a service to have an account made."""

    url: str
    fields: dict[str, str]
    asks: dict[str, str] = {}


class SignUpBegun(Shape):
    """A setup that has begun."""

    connection_id: str
    state: str
    form: SignUpForm


class Invitation(Shape):
    """Words with a pairing code, for whoever is to use it."""

    id: str
    invitation: str


class Agent(Shape):
    """One agent, in short."""

    name: str
    model: str
    file: bool
    in_force: bool
    default: bool
    """Whether it answers what no agent's route fits."""
    """Whether it hears what comes in: without a file it does only while no other agent has one."""
    problem: str


class Agents(Shape):
    """All of them, by name."""

    agents: list[Agent]


class AgentLayer(Shape):
    """One layer of an agent's identity, as it is in force."""

    name: str
    """SOUL, AGENT, IDENTITY or USER."""
    file: str
    """Below the folder agents."""
    text: str


class AgentShadowedSection(Shape):
    """A section that a section of the same name in a higher layer shadows."""

    heading: str
    kept_in: str
    kept: str
    shadowed_in: str
    shadowed: str


class AgentInFull(Shape):
    """An agent's files, and what they mean."""

    name: str
    toml: str
    instructions: str
    """Its AGENT layer."""
    folder: bool
    """Whether its files are in a folder of its own."""
    files: dict[str, str]
    """The texts of its other layers as they are in its own folder, by name."""
    spec: dict[str, Any] | None
    problem: str
    layers: list[AgentLayer]
    """Those in force, the highest first, with those that all agents share. What is known of single people is shown to
    owners only."""
    conflicts: list[AgentShadowedSection]
    packet: str
    """What the agent is told of who it is, in a conversation that is not private."""
    digest: str
    """Names exactly this packet."""


class AgentWritten(Shape):
    """An agent as it is in force from the next run on."""

    name: str
    spec: dict[str, Any]


class WorkerLoad(Shape):
    """What an agent's workers have to do."""

    accepted: int
    """Tasks taken on since it was last cleared."""
    dropped: int
    """Tasks refused since then, because too many waited."""
    total: int
    queued: int
    active: int
    saturated: bool
    prolonged_saturation: bool
    """Saturated for half a minute."""


class HeartbeatListItem(Shape):
    """One item of HEARTBEAT.md."""

    when: str
    text: str


class HeartbeatMute(Shape):
    """A conversation in which a heartbeat is muted."""

    conversation_id: str
    muted_at: float


class HeartbeatFinding(Shape):
    """Something that a heartbeat found, and what became of it."""

    id: str
    conversation_id: str
    code: str
    """What was found, such as `question.unanswered`."""
    subject: str
    recommendation: str
    """The code of what is recommended …"""
    advice: str
    """… and the sentence."""
    state: str
    """found, nudged, quiet or dropped."""
    reason: str
    found_at: float
    settled_at: float | None


class Heartbeat(Shape):
    """An agent's heartbeat."""

    name: str
    enabled: bool
    every: int
    """Minutes."""
    hours: str
    timezone: str
    budget: float
    """Dollars a day."""
    spent_today: float
    research: bool
    """Whether it may look into something by itself."""
    conversation: str
    """Where it tells of what belongs to no conversation, if its settings say so …"""
    home: str
    """… and where it does now; empty when there is no such place."""
    items: list[HeartbeatListItem]
    problems: list[str]
    """What of HEARTBEAT.md is not in force, and why."""
    muted: list[HeartbeatMute]
    found: list[HeartbeatFinding]
    """The newest first."""


class WaitingTime(Shape):
    """How long people waited, in seconds; None where nobody did."""

    count: int
    p50: float | None
    p95: float | None


class KindFigures(Shape):
    """How the jobs of one kind ended. Tasks have the kind of their worker behind a dot."""

    kind: str
    ended: int
    errors: int
    """Given up."""
    retries: int
    """Tries that had to be repeated."""


class ServiceWindow(Shape):
    """The figures of the last hour or day."""

    window: Literal["hour", "day"]
    first_word: WaitingTime
    """From the message to the model's first word."""
    answer: WaitingTime
    """From the message to the answer, sent as a whole."""
    sampled: bool
    """Whether there were more answers than the newest ones that were looked at."""
    runs: int
    recall_rate: float | None
    """The share of runs that recalled something."""
    kinds: list[KindFigures]


class QueueFigures(Shape):
    """The jobs of one kind that are not over."""

    kind: str
    ready: int
    blocked: int
    scheduled: int
    waiting: int = Field(description="For somebody's answer, or for other jobs.")
    running: int
    oldest_seconds: float
    """How long the oldest ready one has waited."""


class HeartbeatCost(Shape):
    """What an agent's heartbeat cost on a day."""

    day: str
    agent: str
    dollars: float
    calls: int
    today: bool


class ServiceLevels(Shape):
    """How well the instance serves: waiting times, queue, failures, recall and the cost of heartbeats."""

    windows: list[ServiceWindow]
    queue: list[QueueFigures]
    heartbeats: list[HeartbeatCost]
    """The newest day first."""


class AgentGone(Shape):
    """An agent that has no files any more."""

    name: str


class Schedule(Shape):
    """A job to make again and again."""

    id: str
    workspace_id: str
    name: str
    cron: str
    timezone: str
    missed: Literal["skip", "once", "all"]
    kind: str
    payload: dict[str, Any]
    say: str = ""
    """What it says, if that is its work, …"""
    agent: str = ""
    """… to which agent …"""
    conversation_id: str = ""
    """… and where."""
    enabled: bool
    next_at: float
    created_at: float


class ScheduleInFull(Schedule):
    """A schedule with its next five times, and what its line means."""

    upcoming: list[float]
    words: str


class Schedules(Shape):
    """All of them, by name."""

    schedules: list[Schedule]


class Secret(Shape):
    """What may be told of a secret; never its value."""

    owner: str
    name: str
    created_at: float
    used_at: float | None


class Secrets(Shape):
    """All of them."""

    secrets: list[Secret]


class SecretKept(Shape):
    """A secret that was put, and what the service of its connection says."""

    name: str
    owner: str
    health: Health | None


class SecretDeleted(Shape):
    """A secret that is gone."""

    name: str
    owner: str


class Question(Shape):
    """Something a run asks a person."""

    id: str
    job_id: int
    goal_id: str | None = Field(description="The goal that asks; null for a run that is no goal's.")
    conversation_id: str | None
    asked_of: str
    """An author's id; `role:owner` or `role:member` for whoever has that role; empty for anybody known there."""
    question: str
    choices: list[str]
    asked_at: float
    expires_at: float | None
    answered_at: float | None
    answer: str | None = Field(description="What was answered; null while nobody has, or when it expired.")


class Questions(Shape):
    """Oldest first."""

    questions: list[Question]


class QuestionAnswered(Shape):
    """The job that goes on."""

    id: str
    job_id: int


class RememberedNote(Shape):
    """Something that is remembered."""

    id: str
    kind: str
    text: str
    trust: str
    untrusted: bool = Field(description="A stranger or a program wrote it, so it is no instruction.")
    at: float


class Runtime(Shape):
    """An external agent's process as Gofer knows it."""

    id: str
    name: str
    agent: str
    kind: str
    host: str
    program: str
    session: str
    can_resume: bool
    can_spawn: bool
    member: str
    """Whose host may announce it."""
    state: str
    """registered, live, idle, stale, offline or draining."""
    seen_at: float | None
    active_at: float | None
    crashes: int
    """In the last ten minutes."""
    not_tried_until: float | None
    """When it is tried again, after too many crashes."""
    callback_url: str
    created_at: float
    heartbeat_every: float
    """Seconds between two announcements."""


class RuntimeInFull(Runtime):
    """A runtime with its last hops, newest first."""

    hops: list[Hop]


class Runtimes(Shape):
    """Every runtime, by name."""

    runtimes: list[Runtime]


class QuietRules(Shape):
    """How long a terminal has to be quiet before text goes into it."""

    quiet: float
    look_every: float
    at_most: float
    then: Literal["deliver", "fail"]


class Order(Shape):
    """What a host is to do: deliver the text of one hop, once."""

    id: str
    trigger: int
    hop: int
    runtime: str
    agent: str
    kind: str
    action: Literal["deliver", "prompt", "resume", "spawn"]
    text: str
    summary: str
    """For a new session: what was said before."""
    session: str
    conversation: str
    quiet: QuietRules
    force: bool
    """Deliver also when somebody types."""
    lease: float
    """Seconds within which a report has to come."""
    ack_within: float
    answer_within: float
    trace: str


class Orders(Shape):
    """Orders that a host has taken."""

    orders: list[Order]
    over: list[str]
    """Those of the orders it works at that are over: their Triggers were stopped or have gone on."""


class OrderReported(Shape):
    """Whether a report counted."""

    id: str
    ignored: bool
    reason: str
    state: str


class OrderQuestion(Shape):
    """A question that a host asked, by the job that asks it."""

    question: int
    state: Literal["open", "answered", "expired"]
    answer: str


class Participant(Shape):
    """An agent in a conversation."""

    agent: str
    runtime: str | None
    """How it is reached; null for one of Gofer's own."""
    read_seq: int
    wake_seq: int
    ack_seq: int | None
    unread: int
    blocked_reason: str | None
    blocked_at: float | None


class Participants(Shape):
    """The agents of a conversation, by name."""

    participants: list[Participant]


class Acknowledged(Shape):
    """How far an agent has read."""

    conversation_id: str
    ack_seq: int
    ignored: bool
    """The trigger's hop was over: it goes on without this agent."""
    reason: str


class TriggerEnvelope(Shape):
    """What came of asking that an agent be woken."""

    action: Literal["enqueued", "already_pending", "fallback_required", "refused"]
    job: int | None
    runtime: str | None
    reason: str
    next: str = ""
    """The first hop."""
    trace: str


class ConversationMemories(Shape):
    """What is remembered of a conversation, best first."""

    memories: list[RememberedNote]
    problems: list[str]
    """What could not be searched, and what to do about it."""


class McpServer(Shape):
    """An MCP server that an agent's file names."""

    agent: str
    name: str
    kind: Literal["url", "command"]
    where: str = Field(description="The address, or the command with its arguments.")
    tools: list[str]
    tier: str
    trusted: bool
    oauth: bool


class McpServerList(Shape):
    """By agent and name."""

    servers: list[McpServer]


class McpServerNamed(Shape):
    """A server that was written or removed."""

    agent: str
    name: str


class McpTool(Shape):
    """A tool that a server offers."""

    name: str
    title: str = Field(description="What the model calls it.")
    description: str
    tier: str


class McpServerTested(Shape):
    """What a server offers now, or why it cannot be used."""

    agent: str
    name: str
    ok: bool
    problem: str
    seconds: float
    tools: list[McpTool]
    left_out: dict[str, str] = Field(description="Tools that cannot be used, and why.")


class McpAuthorisation(Shape):
    """The link that an owner follows; empty when the server is content already."""

    agent: str
    name: str
    url: str


class Process(Shape):
    """A process that is there."""

    id: str
    host: str
    pid: int
    roles: str
    version: str
    started_at: float
    seen_at: float


class TakenBack(Shape):
    """A release that did not work, and was taken back."""

    build: str
    to: str
    """What runs again; the release itself where there is none before it."""
    reason: str
    at: float


class Deploying(Shape):
    """A release that is being deployed, is on probation or is taken back."""

    build: str
    previous: str
    """The release that it replaces."""
    step: str
    since: float
    doing: str
    """What is done in this step, in words."""
    next: list[str]
    """What comes after it, if all goes well."""
    until: float | None
    """When a release on probation has proved itself, if all goes well."""


class Status(Shape):
    """How the instance is doing, in one look."""

    version: str
    serving: bool
    pid: int | None
    roles: list[str]
    url: str | None
    public_url: str | None
    started_at: float | None
    database: str
    data_dir: str
    running_here: int
    refused: dict[str, int]
    jobs: dict[str, int]
    oldest_ready_seconds: float
    connections: int
    conversations: int
    processes: list[Process]
    build: str = ""
    """The release that runs, where the supervisor runs it."""
    taken_back: TakenBack | None = None
    """The last release that was deployed, if it did not work."""
    deploying: Deploying | None = None
    """The deployment that is under way."""


class Finding(Shape):
    """One thing that was checked."""

    check: str
    severity: Literal["ok", "note", "warning", "error"]
    line: str
    fix: str = ""
    docs: str = ""


class Findings(Shape):
    """Everything that was checked."""

    findings: list[Finding]


class Refusal(Shape):
    """A request that changed nothing."""

    at: float
    connection: str
    status: int
    reason: str
    client: str


class Refusals(Shape):
    """The last hundred."""

    refusals: list[Refusal]


class Integrations(Shape):
    """What is installed, and what could not be loaded."""

    integrations: list[dict[str, Any]]
    broken: dict[str, str]


class Keys(Shape):
    """Which master keys there are, by fingerprint."""

    in_use: str | None
    ring: list[str]
    file: str | None


class Rotated(Shape):
    """What a rotation did."""

    key_id: str
    secrets: int
    conversations: int
    retired: list[str]


class BackedUp(Shape):
    """Where the copy is."""

    path: str
    bytes: int
    key_file: str | None
    files: str | None
    """Agents, prices and models, and the workspaces of shells if asked for; null when there are none."""


class Cost(Shape):
    """What was paid on one day, to one model's agent, from one source."""

    day: str
    agent_id: str
    agent: str
    connection_id: str | None
    dollars: float
    calls: int


class Costs(Shape):
    """What was paid, newest day first. Money set aside for calls under way counts."""

    total: float
    today: float
    costs: list[Cost]


class Shell(Shape):
    """A sandboxed session."""

    conversation_id: str
    agent_id: str
    agent: str
    """Its name; empty when the agent is gone."""
    trust: str
    used_at: float
    provider: str
    level: str
    """How isolated it is: none, separated, isolated or limited."""
    limits: dict[str, float]
    """Sizes in bytes, times in seconds."""
    created: float | None
    commands: int
    """How many it has run."""
    running: bool
    """Whether the last one had not ended when its run did."""


class Shells(Shape):
    """The last used first."""

    shells: list[Shell]


class ShellUse(Shape):
    """What a shell uses now."""

    alive: bool | None
    """None where that cannot be seen: it is in a container."""
    memory: int
    """Bytes that its processes have in memory."""
    disk: int
    """Bytes of its workspace."""
    files: int
    """Files and directories in its workspace."""
    processes: list[str]
    looked_at: float


class ShellFile(Shape):
    """A file, directory, link or the like in a shell's workspace."""

    name: str
    kind: str
    size: int
    modified_at: float
    target: str
    """Where a link points to."""


class ShellInFull(Shape):
    """A shell, what it uses, and what a directory of it holds."""

    shell: Shell
    found: bool
    """Whether it is on the machine that was asked; if not, nothing below is known."""
    use: ShellUse | None
    path: str
    files: list[ShellFile]
    more: int
    """Files beyond those listed."""


class ShellClosed(Shape):
    """A shell that was closed."""

    conversation_id: str
    agent_id: str


class Member(Shape):
    """Somebody who may sign in."""

    id: str
    name: str
    role: Role
    has_password: bool
    created_at: float
    signed_in_at: float | None


class ListedMember(Member):
    """A member in the list."""

    refused: bool = Field(description="Its row was not written by Gofer, so it counts for nothing.")


class Members(Shape):
    """The first one first."""

    members: list[ListedMember]


class Link(Shape):
    """A one-time link, shown this once."""

    member: str
    url: str
    expires_in: float


class Me(Shape):
    """Who is asking."""

    member_id: str
    name: str
    role: Role
    via: Literal["session", "token", "socket"]
    scopes: dict[str, Role] | None = Field(
        default=None, description="What a token may do with each noun; null when it is for all of them."
    )
    agent: str = Field(default="", description="The agent that the token is bound to; empty for none.")


class Session(Shape):
    """A browser in which one is signed in."""

    id: str
    by: str = Field(description="How it began: password or link.")
    address: str
    agent: str = Field(description="The browser, in its own words.")
    created_at: float
    seen_at: float
    current: bool = Field(description="Whether it is the one that asks.")


class Sessions(Shape):
    """The one seen last first."""

    sessions: list[Session]


class SessionsEnded(Shape):
    """How many sessions were ended."""

    ended: int


class Token(Shape):
    """A program's way in."""

    id: str
    member_id: str
    member: str
    name: str
    scope: Scope = Field(description="The most it may do.")
    scopes: list[str] = Field(description="`noun:scope` words; empty when it is for every noun.")
    agent: str = Field(description="The agent that it is bound to; empty when it is bound to none.")
    created_at: float
    expires_at: float | None
    used_at: float | None
    refused: bool = Field(description="Its row was not written by Gofer, so it counts for nothing.")


class Tokens(Shape):
    """The newest first."""

    tokens: list[Token]


class TokenMade(Shape):
    """A new token, shown this once."""

    id: str
    token: str
    scope: Scope
    scopes: list[str]
    agent: str
    expires_at: float | None


class Device(Shape):
    """A key that a program connects with."""

    id: str
    name: str
    member: str
    scopes: list[str]
    paired: bool = Field(description="False until an owner has let it in.")
    waiting: bool = Field(description="Whether the owners are being asked about it.")
    has_token: bool
    created_at: float
    used_at: float | None
    refused: bool = Field(description="Its row was not written by Gofer, so it counts for nothing.")


class Devices(Shape):
    """The newest first."""

    devices: list[Device]


class DeviceMade(Shape):
    """A device that was paired, with its token, shown this once."""

    id: str
    token: str
    scopes: list[str]


class AuditEntry(Shape):
    """A change somebody asked for."""

    id: int
    member_id: str
    name: str
    via: str
    address: str
    action: str
    subject: str
    data: dict[str, Any]
    status: int
    """How it was answered; 0 while that is not known."""
    at: float


class Audit(Shape):
    """Changes, newest first."""

    entries: list[AuditEntry]
    next: str | None


class AuditHead(Shape):
    """Where the chain of the audit log ends."""

    place: int
    link: str


class AuditVerdict(Shape):
    """Whether the audit log is whole."""

    entries: int
    head: AuditHead | None
    problems: list[str]


class AuditLink(AuditEntry):
    """An entry with its place in the chain; in hex, a hash over it and the link before, and a MAC over its answer."""

    place: int | None
    link: str
    end_mac: str


class AuditExport(Shape):
    """A part of the audit log, oldest first."""

    entries: list[AuditLink]
    head: AuditHead | None


class AuditAccepted(Shape):
    """How many entries were chained anew, and what was wrong before."""

    entries: int
    problems: list[str]


class RowNamed(Shape):
    """A row by its table and primary key."""

    table: str
    key: str


class RefusedRow(RowNamed):
    """A row that somebody else than Gofer wrote."""

    says: dict[str, Any]


class RefusedRows(Shape):
    """Rows that are refused."""

    rows: list[RefusedRow]


class AcceptedRows(Shape):
    """Rows that were accepted as they are."""

    accepted: list[RowNamed]


class Gone(Shape):
    """What is no longer there."""

    id: str


class Named(Shape):
    """What was made or changed."""

    id: str
    name: str
