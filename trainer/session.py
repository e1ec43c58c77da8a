"""A training session: check and load everything that a run needs before its first step.

These are refused, with all reasons: a set that fails quick validation, splits that are too small, and a run folder in
use. A resumed run also needs the checkpoint's manifest (which names tokenizer and vocabulary), and a recipe that keeps
the model and the order of the data. Other changes of the recipe are allowed, printed and recorded; with no step left,
nothing changes.
"""

# pyright: reportUnknownMemberType=false
import gc
import os
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from shards import ShardSet, open_set
from shards.config import check_settings
from shards.errors import InputError, first_of, plural, unread
from shards.format.vocabulary import check_tokenizer
from shards.format.windows.order import WindowOrder
from shards.format.windows.packed import RowOrder, order_split
from shards.stores.cache import Cache
from shards.stores.files import lock_folder, make_folder, write_bytes, write_text
from shards.stores.open import Place
from shards.stores.store import FolderStore
from shards.terminal.reporter import Note
from shards.validation.files import check_files
from shards.validation.manifest import check_manifest_totals
from trainer.checkpoint.folders import Checkpoint, CheckpointState, clear_leftovers
from trainer.checkpoint.tensors import check_disk, load_training_state, load_weights, save_checkpoint
from trainer.device import choose_device, choose_precision, wait_for_ranks
from trainer.evaluation.eval_sets import find_text_scales
from trainer.evaluation.evaluate import Scorer, open_scorers
from trainer.metrics import copy_metrics
from trainer.model.decoder import LanguageModel, build_model, count_parameters, flops_per_token
from trainer.model.generate import TrainedModel
from trainer.optim import Optimizers, build_optimizers
from trainer.recipe.cards import CARDS, find_card
from trainer.recipe.schema import ChosenPrecision, TrainRecipe
from trainer.resume import check_resume_fits, describe_beginning, find_resume_start
from trainer.run_folder import RECIPE_FILE, RUN_FILE, TOKENIZER_FILE, RunRecord, check_run_folder
from trainer.weights.given_weights import GivenWeights, begin_from, find_untrained


@dataclass
class Session:
    """A run that is ready to take its next step."""

    run: Path
    recipe: TrainRecipe
    shard_set: ShardSet
    order: WindowOrder
    model: LanguageModel
    forward: nn.Module
    """The model, or its wrapper that adds up gradients over ranks."""
    optimizers: Optimizers
    device: torch.device
    precision: ChosenPrecision
    rank: int
    ranks: int
    resources: ExitStack
    """The lock of the run folder and the group of ranks."""
    step: int = 0
    """Steps done."""
    targets: int = 0
    """Targets of packed rows in the steps whose losses are fetched."""
    seconds: float = 0.0
    """Time taken by the processes before this one."""
    saved: Path | None = None
    """The newest checkpoint."""
    scorers: list[Scorer] = field(default_factory=list[Scorer])
    """The recipe's eval sets and eval tasks."""
    untrained: frozenset[int] = frozenset()
    """The ids of special tokens that no text has had, here or before."""

    @property
    def windows(self) -> int:
        """Windows consumed."""
        return self.step * self.recipe.train.global_batch

    @cached_property
    def _tokenizer_json(self) -> bytes:
        return self.shard_set.tokenizer_json

    @property
    def trained(self) -> TrainedModel:
        """The current model, to score it and to continue texts with it."""
        one, content = self.shard_set, self._tokenizer_json
        return TrainedModel(
            self.model, self.recipe.train, content, one.eos_id, one.bos_id, self.step, one, one.manifest.chat
        )

    @cached_property
    def peak_tokens_per_s(self) -> float | None:
        """Tokens per second at which all devices reach their peak (MFU 1); None if it is not known."""
        peak = self.recipe.cost.peak_tflops
        card = find_card(torch.cuda.get_device_name(self.device)) if self.device.type == "cuda" else None
        if peak is None and card is not None:
            peak = CARDS[card][0]
        needed = flops_per_token(self.recipe.model, self.model.vocab_size, self.recipe.train.seq_len)
        return peak * 1e12 * self.ranks / needed if peak is not None else None

    def save(self, *, seconds: float) -> None:
        """Write a checkpoint of the current step; every rank calls it.

        Raises:
            OSError: the checkpoint cannot be written; the previous ones are untouched.
        """
        state = CheckpointState(
            step=self.step,
            samples=self.windows,
            targets=self.targets,
            seconds=seconds,
            recipe=self.recipe.model_dump(mode="json"),
            vocab_size=self.model.vocab_size,
            eos_id=self.shard_set.eos_id,
            bos_id=self.shard_set.bos_id,
            chat=self.shard_set.manifest.chat,
            untrained=sorted(self.untrained),
            manifest_sha256=self.shard_set.manifest_sha256,
            tokenizer_sha256=self.shard_set.manifest.tokenizer.sha256,
        )
        self.saved = save_checkpoint(self.run, state, self.model, self.optimizers, write=self.rank == 0)

    def describe_saved(self) -> str:
        """Return a sentence that names the last checkpoint, for a run that cannot go on."""
        if self.saved is None:
            return "No checkpoint had been written."
        return f"The last checkpoint is {self.saved}; the same command continues from there."

    def close(self) -> None:
        """Release the lock of the run folder, and leave the group of ranks: the model is no longer usable."""
        if self.ranks > 1:
            # A thread of the group may wait for the interpreter's lock: it must end while the interpreter runs, and
            # nothing may wait for it under that lock. So the group ends last, after all that holds it: the wrapper of
            # the model, or the mesh, which torch remembers to the end of the process.
            if isinstance(self.forward, DistributedDataParallel):
                del self.forward.reducer, self.forward.logger
            for mesh in {weight.device_mesh for weight in self.model.parameters() if isinstance(weight, DTensor)}:
                mesh._pg_registry.clear()  # pyright: ignore[reportPrivateUsage]
            del self.model, self.forward, self.optimizers
            gc.collect()
        self.resources.close()


def open_session(
    recipe: TrainRecipe,
    place: Place,
    run: Path,
    *,
    say: Note,
    start: Path | None = None,
    weights: GivenWeights | None = None,
    cache: Cache | None = None,
) -> Session:
    """Open a session: check everything, load or build the model, prepare the run folder. Every rank calls it.

    A run that has begun goes on from its newest whole checkpoint.

    Args:
        recipe: what to train.
        place: the shard set: a folder, or an address in a remote store.
        run: the run's folder; it is created if absent.
        say: called with each line the user should know.
        start: the checkpoint of another run that this one begins from, if it has not begun; by `locate_checkpoint`.
        weights: those that it begins with, if it has not begun.
        cache: keeps the shards of a set that is not on this machine.

    Raises:
        InputError: the run cannot start; the message has all known reasons. No file of an earlier run is deleted.
        OSError: the run folder is not writable.
    """
    # Check the set and the machine.
    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    train = recipe.train
    shard_set = open_valid_set(place, cache)
    vocab_size = recipe.model.vocab_size or shard_set.vocab_size
    device = choose_device(train.device)
    precision = choose_precision(train.precision, device)
    with ExitStack() as resources:
        # Lock the run folder, and find the checkpoint to resume from.
        if ranks > 1:
            dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
        if rank == 0:
            check_run_folder(run)
            made = not run.exists()
            make_folder(run)
            resources.enter_context(lock_folder(run))
            if made:
                resources.callback(_remove_empty, run)
        found = find_resume_start(run, start, weights, say)
        order = plan_windows(shard_set, recipe, ranks, say)
        if found is not None:
            recipe = check_resume_fits(found, recipe, shard_set, say)
        # Wait until the other ranks have read theirs, too: corrupt checkpoints will have other names.
        wait_for_ranks()

        # Build or load the model, and resume its state.
        torch.manual_seed(train.seed)
        model = build_model(recipe.model, vocab_size, seed=train.seed)
        model.activation_checkpointing = train.activation_checkpointing
        untrained = find_untrained(shard_set, weights)
        if found is not None:
            load_weights(found, model)
            untrained = frozenset(found.state.untrained)
        elif weights is not None:
            begin_from(weights, model, shard_set, say)
        if weights is not None:
            weights.trained.model.to("meta")  # its memory is free
        model.to(device)
        forward = _spread(model, recipe, device, precision, ranks)
        optimizers = build_optimizers(model, recipe.optimizer, precision)
        session = Session(
            run,
            recipe,
            shard_set,
            order,
            model,
            forward,
            optimizers,
            device,
            precision,
            rank,
            ranks,
            resources,
            untrained=untrained,
        )
        if shard_set.vocabulary.keeps != "bytes" and not find_text_scales(shard_set):
            say("bits per byte count the rewritten text: the set does not say how long the text of its sources is")
        session.trained.encode_prompts(recipe.eval.prompts, "eval.prompts")
        session.scorers = open_scorers(recipe.eval, session.trained, say)
        if found is not None:
            load_training_state(found, model, session.optimizers)
            session.step, session.saved = found.state.step, found.path
            session.seconds, session.targets = found.state.seconds, found.state.targets
            say(f"resumed from {found.path}")
        # So far no file of an earlier run has changed, whatever was refused.
        if rank == 0:
            _prepare_run(session, found, weights, say)
        wait_for_ranks()
        if ranks > 1:  # Only now: a refused rank must not wait for the others, which wait for it.
            resources.callback(dist.destroy_process_group)
        session.resources = resources.pop_all()  # The session closes them from now on.
        return session


def _remove_empty(run: Path) -> None:
    """Remove the folder of a session that was refused before it wrote a file."""
    with suppress(OSError):
        run.rmdir()


def open_valid_set(place: Place, cache: Cache | None) -> ShardSet:
    """Open a set, or refuse what quick validation finds, and what cannot be read."""
    try:
        if isinstance(place, Path):
            shard_set, problems = check_files(FolderStore(place))
        else:  # by one listing; no shard is read
            shard_set = open_set(place, cache=cache)
            manifest = shard_set.manifest
            problems = check_manifest_totals(manifest) + check_tokenizer(shard_set.tokenizer_json, manifest)
    except OSError as error:
        raise InputError(f"{place}: {unread(error, 'Expected the folder of a shard set.')}") from error
    if problems or shard_set is None:
        raise InputError(
            [*map(str, first_of(problems)), f"{place}: not a valid shard set; run tokenmill validate {place}"]
        )
    return shard_set


def plan_windows(shard_set: ShardSet, recipe: TrainRecipe, ranks: int, say: Note) -> WindowOrder:
    """Return the session's order of windows or packed rows; refuse too small splits, and batches and vocabularies that
    do not fit.
    """
    seq_len, batch, micro_batch = recipe.train.seq_len, recipe.train.global_batch, recipe.train.micro_batch
    train, val = (shard_set.splits.get(split, ()) for split in ("train", "val"))
    order = order_split(shard_set, seq_len=seq_len, seed=recipe.train.seed, rows=recipe.train.rows)
    total, vocab_size = sum(shard.num_tokens for shard in train), recipe.model.vocab_size or shard_set.vocab_size
    where, problems = shard_set.store, list[str]()
    if batch % (micro_batch * ranks):
        problems.append(
            f"train.global_batch = {batch} with train.micro_batch = {micro_batch} on {plural(ranks, 'rank')}: "
            "expected a whole number of micro-batches of all ranks. Choose another micro_batch."
        )
    if vocab_size < shard_set.vocab_size:
        problems.append(
            f"model.vocab_size = {vocab_size}: {where} has ids up to {shard_set.vocab_size - 1}. Choose vocab_size = "
            f"{shard_set.vocab_size} or leave it out."
        )
    if order.per_epoch < batch:
        size = f"{seq_len} + 1" if order.unit == "window" else f"{seq_len}"
        problems.append(
            f"{where}: the train split's {plural(total, 'token')} in {plural(len(train), 'shard')} hold "
            f"{plural(order.per_epoch, order.unit)} of {size} tokens; expected at least train.global_batch = "
            f"{batch}. Build a larger set, or lower seq_len or global_batch."
        )
    if all(shard.num_tokens < 2 for shard in val):
        problems.append(f"{where}: the val split has no token to predict. Build it with a larger split.val_tokens.")
    problems += [f"{where}: {fault}" for fault in order.describe_empty_phases()]
    if problems:
        raise InputError(problems)
    if short := order.describe_short_shards(train):
        say(short)
    if isinstance(order, RowOrder):
        say(f"{plural(total, 'train token')}: {order.describe(batch)}")
    else:
        say(
            f"{plural(total, 'train token')}: {plural(order.per_epoch, 'window')} of {seq_len}; each epoch skips "
            f"{plural(order.cropped, 'token')} ({order.cropped / total:.2%}) at shard ends, different ones each epoch"
        )
    for phase in order.phases:
        step, row = divmod(phase.stop - 1, batch)
        say(
            f"phase {phase.name!r} of the mix: {plural(phase.stop - phase.first, order.unit)} of an epoch; its last "
            f"{order.unit} is row {row} of step {step + 1}"
        )
    return order


def _prepare_run(session: Session, found: Checkpoint | None, weights: GivenWeights | None, say: Note) -> None:
    run, recipe, shard_set = session.run, session.recipe, session.shard_set
    for path in clear_leftovers(run, after_step=session.step):
        say(f"{path}: corrupt, kept under this name; delete it when you do not need it")
    # Weights and two moments in fp32: find out now, not after an hour, whether the disk can hold a checkpoint.
    parameters = count_parameters(recipe.model, session.model.vocab_size)
    check_disk(run, 12 * parameters, f"{run}: a checkpoint")
    folder = shard_set.store.folder
    place = str(folder.resolve() if folder else shard_set.store)
    facts = {
        "shards": place,
        "manifest_sha256": shard_set.manifest_sha256,
        "weights": str(weights.place) if weights else None,
        "weights_sha256": weights.sha256 if weights else None,
        "parameters": parameters,
    }
    record = check_settings(RunRecord, facts, where=str(run / RUN_FILE))
    if found is not None:
        record = describe_beginning(run, found, recipe, record)
    # Before all others: by it the folder is that of a run. A run that has metrics has begun, and says from where.
    write_text(run / RUN_FILE, record.to_json())
    if found is not None:
        copy_metrics(found.run, run, until_step=found.state.step)
    write_bytes(run / TOKENIZER_FILE, shard_set.tokenizer_json)
    write_text(run / RECIPE_FILE, recipe.to_json())


def _spread(
    model: LanguageModel, recipe: TrainRecipe, device: torch.device, precision: ChosenPrecision, ranks: int
) -> nn.Module:
    """Compile the session's model if the recipe says so, and spread it over the ranks; return what steps call."""
    train = recipe.train
    sharded = ranks > 1 and train.parallel == "fsdp"
    if train.compile:
        # A small model waits for the host to start its kernels; a CUDA graph starts all at once (docs/lab/training.md).
        # It overwrites the gradients of the micro-batch before, so that a step may have one alone.
        graphs = device.type == "cuda" and ranks == 1 and train.micro_batch == train.global_batch
        measured = not train.document_mask and train.rows == "windows" and train.activation_checkpointing == "none"
        for part in model.model.layers if sharded else [model]:
            part.compile(mode="reduce-overhead" if graphs and measured else None)
    if sharded:
        mesh = init_device_mesh(device.type, (ranks,))
        # Gathered in bf16, half as much is sent; inputs stay as they are, since rotary tables need fp32.
        bf16 = {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32} if precision == "bf16" else {}
        policy = MixedPrecisionPolicy(**bf16, cast_forward_inputs=False)
        for part in [*model.model.layers, model]:
            fully_shard(part, mesh=mesh, mp_policy=policy)
    elif ranks > 1:
        devices = [device.index] if device.type == "cuda" else None
        return DistributedDataParallel(model, device_ids=devices, gradient_as_bucket_view=True)
    return model
