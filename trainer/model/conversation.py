"""A conversation with a model, as ids: what was asked and what was sampled, closed as the format closes an answer."""

from collections.abc import Callable

from shards.errors import InputError, plural
from trainer.model.generate import Completion, TrainedModel, complete
from trainer.recipe.eval_config import SamplingOptions


class Conversation:
    """What was said so far.

    Attributes:
        ids: all ids from the one that begins a document.
    """

    def __init__(self, trained: TrainedModel, options: SamplingOptions):
        """Begin a conversation.

        Raises:
            InputError: the model has seen no conversations.
        """
        self._trained, self._options, self._chat = trained, options, trained.chat_ids
        self.ids = [trained.begin_id]

    def ask(self, question: str, on_text: Callable[[str], None] | None = None) -> Completion:
        """Return the answer to a question; it belongs to the conversation also if it is interrupted.

        Args:
            question: what the user says.
            on_text: called with each piece of the answer as soon as its characters are whole.

        Raises:
            InputError: the question fills the model's context; the conversation stays as it was.
        """
        trained, chat = self._trained, self._chat
        ids = [*self.ids, *chat.encode([("user", question)], trained.encode_piece), *chat.opening]
        context = trained.model.config.max_position_embeddings
        if len(ids) >= context:
            raise InputError(
                f"the conversation has {plural(len(ids), 'token')} with this question; expected fewer than the model's "
                f"context of {context}. Ask less, or begin another conversation."
            )
        answer = Completion(question, trained.step)
        try:
            complete(trained, [answer], [ids], self._options, trained.answer_ends, on_text)
        finally:
            self.ids = [*ids, *answer.token_ids, *chat.tail]
        return answer
