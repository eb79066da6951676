"""Average the weights of several θ, of which some went on from others: the mean keeps more of what each had learned.

    python examples/average_theta.py 0.5 run-6 0.3 run-5 0.2 src/ccot_cli/embedded --output mean

Each folder is the one that `train_theta.py` saves, or a copy that was made of it after an earlier training; the
tokenizer is that of the first one, and a model with another one gets vectors for its tokens (`load_weights`). Source:
Wortsman et al., "Model soups", 2022.
"""

from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import Tensor
from train_theta import load_weights, make_model, with_plain_vectors
from transformers import PreTrainedTokenizerFast

from ccot_cli.files import set_usual_mode


def read_shares(arguments: list[str]) -> list[tuple[float, Path]]:
    """Read shares, each followed by a folder."""
    try:
        return [(float(share), Path(folder)) for share, folder in zip(arguments[::2], arguments[1::2], strict=True)]
    except ValueError:
        raise typer.BadParameter("a folder follows each share: 0.7 FOLDER 0.3 FOLDER") from None


def read_weights(folder: Path, tokenizer: PreTrainedTokenizerFast) -> dict[str, Tensor]:
    """Read the weights of a trained θ, with a vector for each token of a tokenizer."""
    model = make_model(tokenizer)
    load_weights(model, tokenizer, folder)
    return with_plain_vectors(model).state_dict()


def average(models: list[tuple[float, dict[str, Tensor]]]) -> dict[str, Tensor]:
    """Return the weighted mean of weights; the shares need not add up to one."""
    total = sum(share for share, _ in models)
    return {
        name: torch.stack([share / total * each[name] for share, each in models]).sum(dim=0) for name in models[0][1]
    }


def main(
    models: Annotated[list[str], typer.Argument(metavar="SHARE FOLDER ...", help="Models and their shares.")],
    output: Annotated[Path, typer.Option(help="Folder to write tokenizer and model to.")],
) -> None:
    """Write the mean of models, in bfloat16."""
    chosen = read_shares(models)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(chosen[0][1])
    model = with_plain_vectors(make_model(tokenizer))
    model.load_state_dict(average([(share, read_weights(folder, tokenizer)) for share, folder in chosen]))
    tokenizer.save_pretrained(output)
    model.bfloat16().save_pretrained(output)
    set_usual_mode(output / "model.safetensors")


if __name__ == "__main__":
    typer.run(main)
