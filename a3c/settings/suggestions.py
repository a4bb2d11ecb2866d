"""What somebody may have meant by an unknown name: by its spelling, or as other programs call it.

The names are those of Stable-Baselines3 and its zoo, CleanRL, PFRL and RLlib, among others. Where a
name means different things there, the most common meaning counts.
"""

import difflib
from collections.abc import Iterable

# Our flag, and what others call it.
_ELSEWHERE = {
    "n_workers": "num_workers num_env_runners num_rollout_workers n_procs num_procs n_processes"
    " num_processes processes n_threads num_threads threads workers n_actors num_actors",
    "envs_per_worker": "num_envs n_envs envs num_envs_per_worker num_envs_per_env_runner n_environments",
    "n_steps": "total_timesteps n_timesteps num_timesteps timesteps total_steps max_steps steps"
    " num_frames total_frames frames timesteps_total num_env_steps_sampled_lifetime",
    "env_timeout_seconds": "env_timeout sample_timeout_s",
    "cores": "cpus num_cpus n_cpus n_cores num_cores n_jobs nproc",
    "seed": "random_seed rng",
    "steps_per_update": "t_max num_steps rollout_fragment_length rollout_length rollout_steps"
    " train_batch_size batch_size n_step nsteps unroll_length local_t_max",
    "discount": "gamma discount_factor",
    "entropy_bonus": "ent_coef ent_coeff entropy_coef entropy_coeff entropy_cost entropy_weight beta",
    "value_loss_coef": "vf_coef vf_loss_coeff v_loss_coef value_coef value_loss_coeff critic_coef"
    " baseline_cost",
    "max_grad_norm": "grad_clip clip_grad max_norm gradient_clip clip_norm grad_norm_clip"
    " grad_norm_clipping grad_clip_norm",
    "initial_lr": "lr learning_rate lrate step_size lr_start",
    "lr_schedule": "anneal_lr lr_anneal lr_decay schedule",
    "rmsprop_decay": "alpha rms_prop_alpha rmsprop_alpha rho rms_decay",
    "rmsprop_epsilon": "eps epsilon rms_prop_eps rmsprop_eps rms_prop_epsilon opt_eps",
    "network": "policy policy_type net model arch architecture",
    "initial_weights": "ortho_init orthogonal_init initializer",
    "lstm_units": "lstm use_lstm lstm_cell_size lstm_hidden_size recurrent rnn lstm_size memory",
    "max_n_noops": "noop_max noops noop_reset_max",
    "no_clip_rewards": "clip_reward clip_rewards reward_clip",
    "no_end_on_life_loss": "terminal_on_life_loss episodic_life episode_life",
    "hidden_units": "hidden_size hidden_sizes hidden_layers net_arch fcnet_hiddens hiddens layers"
    " n_hidden_channels hidden_dim",
    "activation": "activation_fn fcnet_activation nonlinearity",
    "normalize_observations": "norm_obs normalize normalize_obs obs_norm observation_filter ob_norm",
    "scale_rewards": "norm_reward norm_rewards normalize_reward normalize_rewards reward_norm"
    " reward_scale reward_scale_factor",
    "max_episode_steps": "time_limit horizon max_episode_len max_episode_length",
    "policy_sd": "std_type sde use_sde",
    "initial_sd": "log_std_init init_std sigma action_std",
    "load_ckpt": "load load_model model_path trained_agent pretrained restore checkpoint ckpt"
    " checkpoint_path weights restore_from",
    "ckpt_interval_seconds": "save_freq save_interval checkpoint_freq checkpoint_frequency"
    " checkpoint_interval",
    "keep_ckpts": "keep_checkpoints num_to_keep max_to_keep keep_checkpoints_num",
    "eval_interval_steps": "eval_freq eval_interval evaluation_interval eval_every test_interval",
    "eval_episodes": "n_eval_episodes num_eval_episodes eval_n_runs n_eval evaluation_duration"
    " evaluation_num_episodes test_episodes",
    "log_interval_seconds": "log_interval log_freq log_every report_interval report_freq"
    " statistics_interval summary_interval",
    "log_dir": "logdir log_folder outdir out_dir out output output_dir save_dir save_path folder"
    " tensorboard_log log_path results_dir storage_path local_dir",
    "run_name": "exp_name experiment_name experiment name tag tb_log_name exp_id",
    "resume": "continue resume_from",
    "config": "config_file conf cfg hyperparameters hyperparams hparams yaml_file conf_file",
    "preset": "profile tuned_example defaults",
}
MEANT = {theirs: ours for ours, names in _ELSEWHERE.items() for theirs in names.split()}
# The environment is named without a flag.
ENV = {"env", "env_id", "env_name", "environment", "gym_id", "game", "rom", "task", "id"}


def nearest(name: str, names: Iterable[str]) -> str:
    """A hint at the one of the names that was probably meant, if there is such a one."""
    known = sorted(names)
    plain = name.lstrip("-").replace("-", "_").lower()
    for meant in (plain, MEANT.get(plain, "")):
        for form in (meant, f"--{meant}"):
            if form in known:
                return f" (did you mean {form}?)"
    if name.startswith("--") and plain in ENV:
        return " (the environment needs no flag, as in train.py CartPole-v1)"
    near = difflib.get_close_matches(name[:100], known, n=1)
    return f" (did you mean {near[0]}?)" if near else ""
