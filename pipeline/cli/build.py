"""Build a shard set from a recipe. Run the same command again to resume."""

from __future__ import annotations

import argparse
import json
from contextlib import closing

from pipeline.cli.engines import add_engine, open_executor
from pipeline.cli.flags import add_network, add_recipe, parse_build_place, read_network
from shards.terminal.arguments import parse_path
from shards.terminal.exit_status import PROBLEMS, WHOLE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `build`."""
    add_recipe(parser)
    parser.add_argument(
        "--out",
        type=parse_build_place,
        required=True,
        metavar="PLACE",
        help="folder of the shard set, or s3://BUCKET/PREFIX",
    )
    parser.add_argument(
        "--work",
        type=parse_build_place,
        metavar="PLACE",
        help="folder or s3:// address for runs and receipts (default: OUT.work)",
    )
    parser.add_argument(
        "--scratch",
        type=parse_path,
        metavar="DIR",
        help="where tasks write until a file is whole (default: in WORK, or with s3:// the system's temporary folder)",
    )
    parser.add_argument(
        "--keep-tokenizer",
        dest="tokenizer",
        action="store_const",
        const="keep",
        default="recipe",
        help="after adding files to a source: do not train again, and encode only the new files",
    )
    parser.add_argument(
        "--validate",
        choices=["quick", "full"],
        default="full",
        help="how to check the finished set (default: full; quick if full has already found this very set whole)",
    )
    parser.add_argument(
        "--prune",
        action="store_true",
        help="when the set is published, delete from WORK what this build did not use",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print which tasks would run, and why; with --engine slurm, also the first job",
    )
    add_network(parser)
    add_engine(parser)


def run(options: argparse.Namespace) -> int:
    """Build the set, print the result and return the exit status."""
    # Open the executor first: the local one's fork server loads the libraries while this process does.
    with closing(open_executor(options)) as executor:
        from pipeline.builder.python_api import DryRunEnd, SetProblemsError, build_set, default_work
        from pipeline.cli.build_display import build_json, forecast_json, print_build, print_forecast

        work = options.work or default_work(options.out)
        try:
            result = build_set(
                options.recipe,
                out=options.out,
                work=work,
                overrides=options.overrides,
                validate=options.validate,
                tokenizer=options.tokenizer,
                network=read_network(options),
                progress=True,
                executor=executor,
                scratch=options.scratch,
                dry_run=options.dry_run,
                prune=options.prune,
            )
        except SetProblemsError as error:
            result = error.result
        except DryRunEnd as end:
            if options.json:
                print(json.dumps(forecast_json(end), indent=2))
            else:
                print_forecast(end)
            return WHOLE
    if options.json:
        print(json.dumps(build_json(result, options.out, work), indent=2))
    else:
        print_build(result, options.out, work)
    return PROBLEMS if result.validation.problems else WHOLE
